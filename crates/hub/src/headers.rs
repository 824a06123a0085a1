//! Parses the values of headers, as the hub and its CDN write them.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;

/// The position of the first byte of a 206 answer, and the size of the whole file if the header states the size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContentRange {
    pub(crate) start: u64,
    pub(crate) size: Option<u64>,
}

/// Parses the value of `Content-Range`, such as `bytes 0-99/1234`; `None` if the value names no range.
pub(crate) fn content_range(value: &str) -> Option<ContentRange> {
    let (range, size) = value.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    let size = match size.trim() {
        "*" => None,
        size => Some(size.parse().ok()?),
    };
    Some(ContentRange { start, size })
}

/// Returns the target of the link with `rel="next"`.
pub(crate) fn next_link(value: &str) -> Option<&str> {
    // the list is split at `<`, because a URL may contain commas
    value.split('<').skip(1).find_map(|link| {
        let (target, parameters) = link.split_once('>')?;
        let is_next = |parameter: &str| matches!(parameter.trim().trim_end_matches(','), "rel=\"next\"" | "rel=next");
        parameters.split(';').any(is_next).then_some(target)
    })
}

/// Returns the text of an entity tag.
pub(crate) fn etag(value: &str) -> &str {
    value.trim().trim_start_matches("W/").trim_matches('"')
}

/// Returns the time to wait after `RateLimit: "api";r=0;t=55`. If several limits are exhausted, returns the longest of
/// their times; `None` if no limit is exhausted.
pub(crate) fn rate_limit(value: &str) -> Option<Duration> {
    let wait = |limit: &str| {
        let parameter = |name: &str| {
            let mut parameters = limit.split(';').filter_map(|parameter| parameter.trim().split_once('='));
            parameters.find(|(key, _)| *key == name)?.1.trim().parse::<u64>().ok()
        };
        (parameter("r")? == 0).then_some(())?;
        parameter("t")
    };
    // `t` is in whole seconds: the limit may last up to one second longer
    value.split(',').filter_map(wait).max().map(|seconds| Duration::from_secs(seconds.saturating_add(1)))
}

/// Returns the time to wait after `Retry-After`. The header has a number of seconds or a date.
pub(crate) fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_have_a_start_and_perhaps_a_size() {
        assert_eq!(content_range("bytes 5-9/10"), Some(ContentRange { start: 5, size: Some(10) }));
        assert_eq!(content_range("bytes 5-9/*"), Some(ContentRange { start: 5, size: None }));
        for text in ["bytes */10", "5-9/10", "bytes 5-9", "bytes a-9/10", "bytes 5-9/x"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn the_next_page_is_one_of_the_links() {
        let next = "https://hub/tree?cursor=a,b";
        assert_eq!(next_link(&format!("<{next}>; rel=\"next\"")), Some(next));
        assert_eq!(
            next_link(&format!("</first>; rel=\"first\", <{next}>; rel=\"next\", </x>; rel=\"last\"")),
            Some(next)
        );
        assert_eq!(next_link("</first>; rel=\"prev\""), None);
    }

    #[test]
    fn an_etag_has_no_quotes() {
        assert_eq!(["\"ab\"", "W/\"ab\"", "ab"].map(etag), ["ab"; 3]);
    }

    #[test]
    fn a_rate_limit_counts_if_it_is_used_up() {
        let seconds = |text| rate_limit(text).map(|wait| wait.as_secs());
        assert_eq!(seconds("\"resolvers\";r=0;t=55"), Some(56));
        assert_eq!(seconds("\"api\"; r=0; t=5, \"pages\"; r=0; t=7"), Some(8));
        assert_eq!(seconds("\"api\";r=3;t=55"), None);
        assert_eq!(seconds("\"api\""), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let seconds = |text| retry_after(text, now).map(|wait| wait.as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds("Fri, 02 Jan 2026 03:05:00 GMT"), Some(55));
        assert_eq!(seconds("Fri, 02 Jan 2026 03:00:00 GMT"), Some(0));
        assert_eq!(seconds("soon"), None);
    }

    proptest! {
        #[test]
        fn no_value_breaks_a_parser(value in "[ -~]{0,40}|[a-z<>;,=\"0-9 /-]{0,40}") {
            content_range(&value);
            next_link(&value);
            etag(&value);
            rate_limit(&value);
            retry_after(&value, Timestamp::UNIX_EPOCH);
        }
    }
}
