//! Tests the stores of Google and Azure, and credentials from a cloud instance.

use stagecoach_objects::ObjectError;
use stagecoach_test_objects::{StoreFault, TestStore};

use crate::{Reader, SECRET};

#[test]
fn google_is_listed_and_read() {
    let store = TestStore::start();
    store.put("data/a.txt", "text");
    let reader = Reader::with(&[("GOOGLE_BASE_URL", &store.endpoint()), ("GOOGLE_SKIP_SIGNATURE", "true")]);
    let object = reader.list("gs://bucket/data/*.txt").unwrap().remove(0);
    assert_eq!(object.uri.to_string(), "gs://bucket/data/a.txt");
    assert_eq!(reader.bytes(&object, 1..3).unwrap(), b"ex");
    store.put("data/a.txt", "TEXT");
    assert!(matches!(reader.bytes(&object, 1..3), Err(ObjectError::Changed { .. })));
    assert!(reader.refused("gs://other/*").contains("no bucket other: check the spelling, and that GOOGLE_BASE_URL"));
}

#[test]
fn azure_is_listed_and_its_refusals_are_read() {
    let store = TestStore::start();
    let key = "cGxhbnRlZC1zZWNyZXQ=";
    let reader = Reader::with(&[
        ("AZURE_STORAGE_ENDPOINT", &store.endpoint()),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", key),
        ("AZURE_STORAGE_TOKEN", SECRET),
    ]);
    let listing = "<EnumerationResults><Blobs><Blob><Name>data/a.txt</Name><Properties>\
                   <Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified><Content-Length>4</Content-Length>\
                   <Content-Type>text/plain</Content-Type><Etag>\"0x8D\"</Etag></Properties></Blob></Blobs>\
                   <NextMarker /></EnumerationResults>";
    let of_the_object =
        [("content-range", "bytes 1-2/4"), ("etag", "\"0x8D\""), ("last-modified", "Fri, 02 Jan 2026 03:04:05 GMT")];
    store.faults([
        StoreFault::Answer(200, vec![("content-type", "application/xml".to_owned())], listing.to_owned()),
        StoreFault::Answer(206, of_the_object.map(|(name, value)| (name, value.to_owned())).to_vec(), "ex".to_owned()),
        StoreFault::error(404, "ContainerNotFound"),
        StoreFault::error(403, "AuthorizationPermissionMismatch"),
        StoreFault::error(403, "AuthenticationFailed"),
    ]);
    let object = reader.list("az://container/data/*").unwrap().remove(0);
    assert_eq!((object.uri.key.as_str(), object.size), ("data/a.txt", 4));
    assert_eq!(reader.bytes(&object, 1..3).unwrap(), b"ex");
    for words in [
        "has no container container: check the spelling, and that AZURE_STORAGE_ENDPOINT names the right store",
        "(AuthorizationPermissionMismatch): give the account of AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_TOKEN the role",
        "doesn't accept the credentials, it answered 403 (AuthenticationFailed): check the account of AZURE_STORAGE_",
    ] {
        let text = reader.refused("az://container/data/*");
        assert!(text.contains(words) && !text.contains(key), "{text}");
    }
}

/// In this test, the store also acts as the metadata service of a cloud instance.
#[test]
fn the_role_of_an_instance_reads_the_store() {
    let store = TestStore::start();
    store.put("data/a.txt", "text");
    let credentials = r#"{"Code": "Success", "AccessKeyId": "AKIAINSTANCE", "SecretAccessKey": "key", "Token": "session",
                          "LastUpdated": "2026-01-02T03:04:05Z", "Expiration": "2100-01-02T03:04:05Z", "Type": "AWS-HMAC"}"#;
    store.faults(
        ["metadata-token", "trainer-role", credentials]
            .map(|body| StoreFault::Answer(200, Vec::new(), body.to_owned())),
    );
    let reader = Reader::with(&[("AWS_ENDPOINT_URL", &store.endpoint()), ("AWS_METADATA_ENDPOINT", &store.endpoint())]);
    assert_eq!(reader.keys("s3://bucket/data/*"), ["data/a.txt"]);
    let requests = store.take_requests();
    assert!(requests[2].path.ends_with("/security-credentials/trainer-role"), "{}", requests[2].path);
    assert!(requests[3].header("authorization").unwrap().contains("Credential=AKIAINSTANCE/"));
}
