//! Tests the client against stores of other projects: moto, and s3s, which verifies signatures. `make object-stores`
//! runs these tests with both stores.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use stagecoach_objects::ObjectError;
use stagecoach_test_wait::{spawn, until};

use crate::{Reader, SECRET};

const SIZE: usize = 12 << 20;

/// A Python script that creates the bucket and the objects of the test, and prints the ETag of the object with two
/// parts. The arguments are the endpoint, and the size of this object in bytes.
const FILL: &str = r#"
import boto3, sys
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
s3.create_bucket(Bucket="corpus")
for index in range(1005):
    s3.put_object(Bucket="corpus", Key=f"many/{index:04} é+%20.txt", Body=b"text %d" % index)
body = bytes(index * index // 7 % 251 for index in range(int(sys.argv[2])))
upload = s3.create_multipart_upload(Bucket="corpus", Key="large.bin")["UploadId"]
parts = [body[:6 << 20], body[6 << 20:]]
tags = [s3.upload_part(Bucket="corpus", Key="large.bin", UploadId=upload, PartNumber=n + 1, Body=part)["ETag"] for n, part in enumerate(parts)]
s3.complete_multipart_upload(Bucket="corpus", Key="large.bin", UploadId=upload, MultipartUpload={"Parts": [{"ETag": tag, "PartNumber": n + 1} for n, tag in enumerate(tags)]})
print(s3.head_object(Bucket="corpus", Key="large.bin")["ETag"])
"#;

/// A running store. The store stops when this value is dropped.
struct Server {
    process: Child,
    endpoint: String,
}

fn python() -> String {
    std::env::var("STAGECOACH_MOTO").expect("the Python with moto: see `make object-stores`")
}

impl Server {
    /// Starts a program that listens on a port. The port is the last argument of the program.
    fn start(program: &str, arguments: &[&str]) -> Server {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut command = Command::new(program);
        command.args(arguments).arg(port.to_string());
        let process = spawn(command.stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
        let server = Server { process, endpoint: format!("http://127.0.0.1:{port}") };
        until(&format!("{program} to listen"), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        server
    }

    /// Writes the objects to moto. Returns the ETag of the large object.
    fn fill(&self) -> String {
        let output = Command::new(python()).args(["-c", FILL, &self.endpoint, &SIZE.to_string()]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        BufReader::new(&*output.stdout).lines().next().unwrap().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
#[ignore = "needs a Python with moto: make object-stores"]
fn moto_is_read() {
    let moto = Server::start(&python(), &["-m", "moto.server", "-H", "127.0.0.1", "-p"]);
    let etag = moto.fill();
    let reader = Reader::with(&[
        ("AWS_ENDPOINT_URL", &moto.endpoint),
        ("AWS_ACCESS_KEY_ID", "AKIAPLANTED"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ]);
    let many = reader.list("s3://corpus/many/*.txt").unwrap();
    assert_eq!(many.len(), 1005);
    assert_eq!(many[7].uri.to_string(), "s3://corpus/many/0007 é+%20.txt");
    assert_eq!(reader.bytes(&many[7], 0..100).unwrap(), b"text 7");

    let large = reader.list("s3://corpus/large.bin").unwrap().remove(0);
    assert!(reader.list("s3://corpus/*").unwrap() == std::slice::from_ref(&large));
    assert!(large.size == SIZE as u64 && large.etag == Some(etag) && reader.client.is_unchanged(&large).unwrap());
    let expected: Vec<u8> = (0..SIZE).map(|at| (at * at / 7 % 251) as u8).collect();
    assert!(reader.bytes(&large, 0..u64::MAX).unwrap() == expected);
    assert_eq!(reader.bytes(&large, 5_000_000..5_000_009).unwrap(), expected[5_000_000..5_000_009]);

    assert!(matches!(reader.list("s3://nobody/*"), Err(ObjectError::NoBucket { .. })));
    assert!(matches!(reader.list("s3://nobody/a"), Err(ObjectError::NoBucket { .. })));
    let nearest = reader.refused("s3://corpus/many.txt");
    assert_eq!(nearest, "no object matches s3://corpus/many.txt: the bucket holds large.bin, many/");

    let changed = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1', \
                   aws_access_key_id='x', aws_secret_access_key='x').put_object(Bucket='corpus', Key='large.bin', Body=b'x')";
    assert!(Command::new(python()).args(["-c", changed, &moto.endpoint]).status().unwrap().success());
    assert!(matches!(reader.bytes(&large, 0..10), Err(ObjectError::Changed { .. })));
    assert!(!reader.client.is_unchanged(&large).unwrap());
}

#[test]
#[ignore = "needs s3s-fs: make object-stores"]
fn a_store_that_verifies_signatures_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("corpus/plays");
    std::fs::create_dir_all(&bucket).unwrap();
    let name = |index| format!("{index:02} é+%20&=.txt");
    (0..30).for_each(|index| std::fs::write(bucket.join(name(index)), format!("text {index}")).unwrap());
    let program = std::env::var("STAGECOACH_S3S").expect("s3s-fs: see `make object-stores`");
    let root = folder.path().to_str().unwrap();
    let keys = ["--access-key", "AKIAPLANTED", "--secret-key", SECRET];
    let server = Server::start(&program, &[&[root, "--host", "127.0.0.1"], &keys[..], &["--port"]].concat());
    let reader = |secret: &str| {
        Reader::with(&[
            ("AWS_ENDPOINT_URL", &server.endpoint),
            ("AWS_ACCESS_KEY_ID", "AKIAPLANTED"),
            ("AWS_SECRET_ACCESS_KEY", secret),
        ])
    };
    let good = reader(SECRET);
    let found = good.list("s3://corpus/plays/*.txt").unwrap();
    assert_eq!(
        found.iter().map(|object| object.uri.key.clone()).collect::<Vec<_>>(),
        (0..30).map(|index| format!("plays/{}", name(index))).collect::<Vec<_>>()
    );
    assert_eq!(good.bytes(&found[7], 0..u64::MAX).unwrap(), b"text 7");
    assert_eq!(good.bytes(&found[12], 5..7).unwrap(), b"12");
    let refused = reader("another-secret").refused("s3://corpus/plays/*");
    assert!(
        refused.contains("doesn't accept the credentials") && refused.contains("SignatureDoesNotMatch"),
        "{refused}"
    );
}
