//! Supports `{% generation %}` blocks, which minijinja lacks. This module rewrites each block as a `{% filter %}`
//! block, whose filter puts marks around the text. As in transformers, variables that the block sets are not visible
//! after the block. The white-space control signs (`-` and `+`) in the block's tags keep their effect.

use std::borrow::Cow;

use crate::marks::{CLOSE, OPEN};

const FILTER: &str = "stagecoach_generation";

/// Adds the filter of generation blocks to `environment`.
pub(crate) fn extend(environment: &mut minijinja::Environment<'_>) {
    environment.add_filter(FILTER, |text: &str| format!("{OPEN}{text}{CLOSE}"));
}

/// Replaces the generation blocks of a template with filters. Returns the new template, and whether the template has
/// generation blocks.
pub(crate) fn rewrite(source: &str) -> (String, bool) {
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source;
    let mut found = false;
    while let Some(start) = next_tag(rest) {
        let (text, tag) = rest.split_at(start);
        let (tag, after) = tag.split_at(end_of_tag(tag));
        rewritten.push_str(text);
        let replaced = replacement(tag);
        found |= replaced.is_some();
        rewritten.push_str(&replaced.map_or(Cow::Borrowed(tag), Cow::Owned));
        rest = after;
    }
    rewritten.push_str(rest);
    (rewritten, found)
}

fn next_tag(text: &str) -> Option<usize> {
    ["{{", "{%", "{#"].iter().filter_map(|open| text.find(open)).min()
}

/// Returns the position after the tag at the start of `text`. A raw block counts as one tag.
fn end_of_tag(text: &str) -> usize {
    if text.starts_with("{#") {
        return text.find("#}").map_or(text.len(), |end| end + 2);
    }
    let end = end_of_code(text);
    if Tag::is(text.get(..end), "raw") { end_of_raw(text, end) } else { end }
}

fn end_of_raw(text: &str, mut from: usize) -> usize {
    while let Some(start) = text.get(from..).and_then(|rest| rest.find("{%")) {
        let rest = text.get(from + start..).unwrap_or_default();
        let end = from + start + rest.find("%}").map_or(rest.len(), |end| end + 2);
        if Tag::is(text.get(from + start..end), "endraw") {
            return end;
        }
        from += start + 2;
    }
    text.len()
}

/// Returns the position after an expression or a block tag. Closing characters (`}}` or `%}`) inside a string or inside
/// braces do not end the tag.
fn end_of_code(text: &str) -> usize {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let (mut quote, mut depth, mut is_escaped) = (None, 0, false);
    for (position, character) in text.char_indices().skip(2) {
        match (quote, character) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, _) if depth == 0 && text.get(position..).is_some_and(|rest| rest.starts_with(close)) => {
                return position + close.len();
            }
            (None, '{') => depth += 1,
            (None, '}') if depth > 0 => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// A block tag that consists of a name and white-space control signs.
struct Tag<'a> {
    before: &'a str,
    name: &'a str,
    after: &'a str,
}

impl Tag<'_> {
    fn parse(tag: &str) -> Option<Tag<'_>> {
        let is_sign = ['-', '+'];
        let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
        let rest = inner.trim_start_matches(is_sign);
        let name = rest.trim_end_matches(is_sign);
        Some(Tag { before: inner.strip_suffix(rest)?, name: name.trim(), after: rest.strip_prefix(name)? })
    }

    fn is(tag: Option<&str>, name: &str) -> bool {
        tag.and_then(Tag::parse).is_some_and(|tag| tag.name == name)
    }
}

/// Returns the tags that replace a tag of a generation block; `None` for other tags. The white-space control signs stay
/// at the outer ends of the two new tags.
fn replacement(tag: &str) -> Option<String> {
    let Tag { before, name, after } = Tag::parse(tag)?;
    match name {
        "generation" => Some(format!("{{%{before} filter {FILTER} %}}{{% with {after}%}}")),
        "endgeneration" => Some(format!("{{%{before} endwith %}}{{% endfilter {after}%}}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(source: &str) -> Option<String> {
        let (text, found) = rewrite(source);
        assert_eq!(found, text != source);
        found.then_some(text)
    }

    #[test]
    fn tags_of_generation_blocks_keep_their_signs() {
        for (source, expected) in [
            ("{% generation %}", "{% filter stagecoach_generation %}{% with %}"),
            ("{%generation%}", "{% filter stagecoach_generation %}{% with %}"),
            ("a{%- generation -%}\n", "a{%- filter stagecoach_generation %}{% with -%}\n"),
            ("{%+ endgeneration -%}", "{%+ endwith %}{% endfilter -%}"),
            ("{{ '{{' }}{% endgeneration %}", "{{ '{{' }}{% endwith %}{% endfilter %}"),
            ("{{ {'a': {}} }}{%endgeneration -%}", "{{ {'a': {}} }}{% endwith %}{% endfilter -%}"),
            (
                "{% raw %}{% generation %}{% endraw %}{%endgeneration%}",
                "{% raw %}{% generation %}{% endraw %}{% endwith %}{% endfilter %}",
            ),
        ] {
            assert_eq!(rewritten(source).as_deref(), Some(expected), "{source}");
        }
    }

    #[test]
    fn the_same_words_elsewhere_are_no_tags() {
        for source in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{{ \"\\\"{% generation %}\" }}",
            "{% set x = '{% generation %}' %}",
            "{%- raw -%} {% generation %}{% endgeneration %} {%- endraw %}",
            "{% raw %}{% generation %}",
            "{% if generation %}{% endif %}",
            "generation {%",
            "{{ '",
        ] {
            assert_eq!(rewritten(source), None, "{source}");
        }
    }
}
