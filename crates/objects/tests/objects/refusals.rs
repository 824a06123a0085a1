//! Tests the error messages for the reasons why a store can't be read.

use stagecoach_objects::ObjectError;
use stagecoach_test_objects::{StoreFault, TestStore};

use crate::{Reader, SECRET};

/// Returns the error message of a listing that the store answers with `fault`.
fn sentence(fault: StoreFault) -> String {
    let store = TestStore::start();
    store.faults([fault]);
    Reader::new(&store).refused("s3://bucket/data/*").replace(&store.endpoint()["http://".len()..], "HOST")
}

#[test]
fn refusals_of_a_listing_say_what_to_do() {
    let keys = "the account of AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY";
    let cases = [
        (
            StoreFault::error(404, "NoSuchBucket"),
            "HOST has no bucket bucket: check the spelling, and that AWS_ENDPOINT_URL_S3 names the right store"
                .to_owned(),
        ),
        (
            StoreFault::error(403, "AccessDenied"),
            format!(
                "HOST refuses access to s3://bucket, it answered 403 (AccessDenied): give {keys} s3:ListBucket and \
                 s3:GetObject, or use the credentials of an account that has them"
            ),
        ),
        (
            StoreFault::error(403, "InvalidAccessKeyId"),
            format!(
                "HOST doesn't accept the credentials, it answered 403 (InvalidAccessKeyId): check {keys}, or set \
                 AWS_SKIP_SIGNATURE=true if everybody may read"
            ),
        ),
        (
            StoreFault::error(403, "RequestTimeTooSkewed"),
            "HOST refuses requests, since the clock of this machine differs from its own: set the clock (NTP)"
                .to_owned(),
        ),
        (
            StoreFault::Answer(301, vec![("x-amz-bucket-region", "eu-west-1".to_owned())], String::new()),
            "HOST does not serve the region of the bucket bucket: set AWS_REGION=eu-west-1".to_owned(),
        ),
        (
            StoreFault::Answer(
                400,
                Vec::new(),
                "<Error><Code>AuthorizationHeaderMalformed</Code><Region>us-west-2</Region></Error>".to_owned(),
            ),
            "HOST does not serve the region of the bucket bucket: set AWS_REGION=us-west-2".to_owned(),
        ),
        (
            StoreFault::error(301, "PermanentRedirect"),
            "HOST does not serve the region of the bucket bucket: set AWS_REGION to the region of the bucket"
                .to_owned(),
        ),
        (
            StoreFault::Answer(200, vec![("content-type", "text/html".to_owned())], "<html>Welcome</html>".to_owned()),
            "s3://bucket can't be read: HOST answered 200 (text/html instead of an XML listing): check the endpoint, \
             proxies and the variables AWS_*"
                .to_owned(),
        ),
        (
            StoreFault::error(501, "NotImplemented"),
            "s3://bucket can't be read: HOST answered 501 (NotImplemented): check the endpoint".to_owned(),
        ),
    ];
    for (fault, expected) in cases {
        let found = sentence(fault);
        assert!(found.starts_with(&expected), "{found}\n{expected}");
    }
}

#[test]
fn the_refusal_of_a_key_has_its_reason_though_the_answer_to_a_head_has_none() {
    let store = TestStore::start();
    store.put("a.txt", "text");
    let error = || StoreFault::error(403, "RequestTimeTooSkewed");
    store.faults([error(), error()]);
    let reader = Reader::new(&store);
    assert!(matches!(reader.list("s3://bucket/a.txt"), Err(ObjectError::ClockSkew { .. })));
    assert!(reader.refused("s3://nobody/a.txt").contains("no bucket nobody"));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let reader = Reader::of_endpoint("http://127.0.0.1:1");
    let error = reader.list("s3://bucket/*").unwrap_err();
    assert!(error.is_temporary());
    let text = error.to_string();
    assert!(text.starts_with("can't connect to 127.0.0.1:1: ") && text.contains("networkPolicy.egressCIDRs"), "{text}");
    assert!(reader.log.lock().unwrap().notices.len() > 5);
    let reader = Reader::of_endpoint("http://stagecoach.invalid");
    assert!(reader.refused("s3://bucket/*").starts_with("can't connect to stagecoach.invalid: "));
}

#[test]
fn an_endpoint_that_is_no_url_is_named() {
    for endpoint in
        ["minio:9000", "ftp://minio", "http://", "http://user:planted-secret-AbC/123+@minio", "http://mi nio"]
    {
        let text = Reader::of_endpoint(endpoint).refused("s3://bucket/*");
        assert!(text.starts_with("AWS_ENDPOINT_URL is not the URL of a server"), "{text}");
    }
}

#[test]
fn missing_credentials_are_named() {
    let store = TestStore::start();
    // no metadata service listens at this address
    let nobody = ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    let endpoint = store.endpoint();
    let reader = Reader::with(&[("AWS_ENDPOINT_URL", &endpoint), nobody]);
    let text = reader.refused("s3://bucket/*");
    assert!(
        text.contains("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles in ~/.aws are not read)"),
        "{text}"
    );
    assert!(text.contains("AWS_SKIP_SIGNATURE=true") && store.take_requests().is_empty(), "{text}");

    let public = [("AWS_ENDPOINT_URL", endpoint.as_str()), nobody, ("AWS_SKIP_SIGNATURE", "true")];
    store.put("a.txt", "text");
    assert_eq!(Reader::with(&public).keys("s3://bucket/*"), ["a.txt"]);
    assert!(store.take_requests()[0].header("authorization").is_none());

    let half = Reader::with(&[("AWS_ENDPOINT_URL", &endpoint), ("AWS_ACCESS_KEY_ID", "AKIA")]);
    assert!(half.refused("s3://bucket/*").starts_with("the variables AWS_* don't describe a store of s3:// files: "));
    let region = Reader::with(&[("AWS_REGION", "eu west/1"), ("AWS_SKIP_SIGNATURE", "true")]);
    assert!(region.refused("s3://bucket/*").contains("AWS_REGION is not the name of a region"));
    let azure = Reader::with(&[]).refused("az://container/*");
    assert!(azure.starts_with("the variables AZURE_* don't describe a store of az:// files: "), "{azure}");
}

#[test]
fn secrets_that_a_server_repeats_are_in_no_text() {
    let store = TestStore::start();
    let words = format!("<Error><Code>Odd{SECRET}</Code><Message>{SECRET}</Message></Error>");
    store.faults([400, 403, 418].map(|status| StoreFault::Answer(status, Vec::new(), words.clone())));
    let reader = Reader::new(&store);
    for _ in 0..3 {
        let text = reader.refused("s3://bucket/*");
        assert!(text.contains("[AWS_SECRET_ACCESS_KEY]"), "{text}");
    }
    assert!(!format!("{:?}", reader.client).contains(SECRET));
}

#[test]
fn a_secret_that_is_longer_than_a_repeated_answer_is_in_no_text() {
    let store = TestStore::start();
    let token = "t0ken/".repeat(60);
    store.faults([StoreFault::Answer(418, Vec::new(), format!("X-Amz-Security-Token: {token}, and more"))]);
    let reader = Reader::with(&[
        ("AWS_ENDPOINT_URL", &store.endpoint()),
        ("AWS_ACCESS_KEY_ID", "AKIAPLANTED"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_SESSION_TOKEN", &token),
    ]);
    let text = reader.refused("s3://bucket/*");
    assert!(text.contains("X-Amz-Security-Token: [AWS_SESSION_TOKEN], and more") && !text.contains("t0ken"), "{text}");
}

#[test]
fn the_bucket_is_part_of_the_host_if_a_store_wants_it() {
    let reader = Reader::with(&[
        ("AWS_ENDPOINT_URL", "http://stagecoach.invalid:9000"),
        ("AWS_ACCESS_KEY_ID", "AKIA"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true"),
    ]);
    assert!(reader.refused("s3://bucket/*").starts_with("can't connect to bucket.stagecoach.invalid:9000: "));
}
