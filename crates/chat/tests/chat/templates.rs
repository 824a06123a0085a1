//! Tests the features of Jinja and Python that templates need. A test in `transformers.rs` verifies that transformers
//! writes the same texts.

use serde_json::{Value, json};
use stagecoach_chat::{Conversation, ConversationError, TemplateSettings};

use crate::common::*;

/// The conversation that [`SNIPPETS`] render.
pub fn sample() -> Value {
    json!({
        "messages": [
            {"role": "user", "content": " Ab c\u{1c}\n"},
            {"role": "assistant", "content": "<a> & \"é\"\t\\", "extra": {"z": 1, "a": [1.0, true, null, 1e16, {}], "m": []}},
        ],
        "tools": [{"name": "f", "args": {"b": "x", "a": 2}}],
    })
}

/// Templates, each with the text that it writes.
pub const SNIPPETS: &[(&str, &str)] = &[
    // white space
    ("{% if true %}\n a\n  {% endif %}\nb\n", " a\nb"),
    ("a \n  {%- if true -%}\n b\n {%- endif %}\n", "ab"),
    ("  {%+ if true %}x{% endif +%}\ny", "  x\ny"),
    ("a\n {# a comment #}\nb {# {% generation %} #}", "a\nb "),
    ("{% raw %}{% generation %}{% endraw %}", "{% generation %}"),
    ("a\n  {% generation %}\n b\n  {% endgeneration %}\nc", "a\n b\nc"),
    ("a\n  {%- generation -%}\n b\n  {%- endgeneration -%}\nc", "abc"),
    // a generation block has a separate scope
    ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
    (
        "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}{% endfor %}",
        "1user2assistant",
    ),
    // loops, namespaces, macros
    (
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "02",
    ),
    ("{% set n = namespace(a=1) %}{% for i in [2, 3] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}", "6"),
    ("{% macro f(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ f(1) ~ f(2, y=3) }}", "[1d][23]"),
    (
        "{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.previtem.role if loop.previtem is defined else '-' }}{{ loop.revindex0 }}{% endfor %}",
        "TrueFalse-1FalseTrueuser0",
    ),
    ("{% for m in messages if m.role == 'user' %}{{ m.role }}{% else %}none{% endfor %}", "user"),
    ("{% set x %}a{{ 1 + 1 }}{% endset %}{{ x }}", "a2"),
    // values
    ("{{ none }} {{ true }} {{ 1.0 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 3 }}", "None True 1.0 3 3.5 2 8"),
    ("{{ missing }}|{{ messages[0].missing }}|{{ messages[0]['missing'] is defined }}", "||False"),
    ("{{ 'a' ~ none ~ 1 ~ true }}", "aNone1True"),
    ("{{ [1, 'a', none, {'k': 'v'}] }}", "[1, 'a', None, {'k': 'v'}]"),
    ("{{ tools is none }} {{ documents is none }} {{ tools is not none and 'y' }}", "False True y"),
    (
        "{{ messages[1:][0].role }} {{ messages[::-1][0].role }} {{ messages[-1]['role'] }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }}",
        "assistant assistant assistant bc cba",
    ),
    ("{{ 'abc'[0] }}{{ 'abc'[-1] }}", "ac"),
    ("{{ 'x' in 'axb' }} {{ 'k' in {'k': 1} }} {{ 3 not in [1, 2] }}", "True True True"),
    ("{{ (1 if false) is defined }} {{ 'a' if messages else 'b' }} {{ '' or 'c' }} {{ 'd' and 'e' }}", "False a c e"),
    ("{{ '-' * 3 }}", "---"),
    ("{{ dict(a=1, b=2) | length }}", "2"),
    // values as Python writes them
    ("{{ [\"isn't\", 'é\\u3000', 0.1, {'k': [none]}] }}", "[\"isn't\", 'é\\u3000', 0.1, {'k': [None]}]"),
    (
        "{{ messages[1].extra }} {{ messages[1].extra | string | length }}",
        "{'z': 1, 'a': [1.0, True, None, 1e+16, {}], 'm': []} 52",
    ),
    ("{{ messages[0].content | list | trim }}", "[' ', 'A', 'b', ' ', 'c', '\\x1c', '\\n']"),
    ("{{ messages[1].extra.a[3] }} {{ (1, 'a') }} {{ 0.1 }}", "1e+16 (1, 'a') 0.1"),
    // tests
    (
        "{{ 'a' is string }} {{ 'a' is iterable }} {{ 'a' is sequence }} {{ {} is mapping }} {{ {} is iterable }} {{ 1 is iterable }}",
        "True True True True True False",
    ),
    (
        "{{ 1 is number }} {{ true is boolean }} {{ true is true }} {{ 3 is odd }} {{ none is none }} {{ [] is sequence }}",
        "True True True True True True",
    ),
    ("{{ 'a' is in ['a'] }} {{ 3 is divisibleby(3) }} {{ 'a' is equalto('a') }}", "True True True"),
    // strings
    (
        "[{{ messages[0].content.strip() }}] [{{ messages[0].content | trim }}] [{{ messages[0].content.lstrip() }}]",
        "[Ab c] [Ab c] [Ab c\u{1c}\n]",
    ),
    (
        "{{ 'xxaxx'.strip('x') }} {{ 'xay'.rstrip('y') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }}",
        "a xa bc ab",
    ),
    (
        "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a</t>b'.split('</t>')[-1] }}",
        "['a', 'b', 'c'] ['a', 'b,c'] ['a', 'b'] b",
    ),
    ("{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\\r\\nb\\n'.splitlines() }}", "['a,b', 'c'] ['a', 'b']"),
    (
        "{{ 'ab'.startswith('a') }} {{ 'ab'.endswith('b') }} {{ 'ab'.startswith(('x', 'a')) }} {{ 'aab'.count('a') }} {{ 'ab'.find('b') }}",
        "True True True 2 1",
    ),
    (
        "{{ 'aBc dE'.upper() }} {{ 'aBc dE'.lower() }} {{ 'aBc dE'.title() }} {{ 'aBc dE'.capitalize() }}",
        "ABC DE abc de Abc De Abc de",
    ),
    (
        "{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX' | replace('X', '') }} {{ '-'.join(['a', 'b']) }} {{ '{} {}'.format(1, 'a') }}",
        "a-b- ab a-b 1 a",
    ),
    (
        "{{ 'a\\nb' | indent(2) }} {{ ['a', 'b'] | join(', ') }} {{ 'ab' | first }} {{ [1, 2] | last }} {{ 'abc' | length }}",
        "a\n  b a, b a 2 3",
    ),
    // objects
    (
        "{% for k, v in messages[1].extra.items() %}{{ k }}={{ v | tojson }};{% endfor %}",
        "z=1;a=[1.0, true, null, 1e+16, {}];m=[];",
    ),
    (
        "{{ messages[1].extra.get('z') }} {{ messages[1].extra.get('y') }} {{ messages[1].extra.get('y', 3) }} {{ messages[1].extra.keys() | list }}",
        "1 None 3 ['z', 'a', 'm']",
    ),
    (
        "{% for k, v in messages[1].extra | items %}{{ k }}{% endfor %} {% for k, v in messages[1].extra | dictsort %}{{ k }}{% endfor %}",
        "zam amz",
    ),
    (
        "{{ messages | map(attribute='role') | join(' ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "user assistant 1",
    ),
    (
        "{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | first }} {{ missing | default('d') }} {{ '' | default('d', true) }}",
        "assistant d d",
    ),
    // JSON
    ("{{ messages[1].content | tojson }}", "\"<a> & \\\"é\\\"\\t\\\\\""),
    ("{{ messages[1].content | tojson(ensure_ascii=true) }}", "\"<a> & \\\"\\u00e9\\\"\\t\\\\\""),
    ("{{ messages[1].extra | tojson }}", "{\"z\": 1, \"a\": [1.0, true, null, 1e+16, {}], \"m\": []}"),
    ("{{ tools[0].args | tojson(indent=2) }}", "{\n  \"b\": \"x\",\n  \"a\": 2\n}"),
    (
        "{{ tools[0] | tojson(separators=(',', ':'), sort_keys=true) }}",
        "{\"args\":{\"a\":2,\"b\":\"x\"},\"name\":\"f\"}",
    ),
    ("{{ strftime_now('%Y-%m-%d %d %b %B %A %H:%M') }}", "2026-07-04 04 Jul July Saturday 00:00"),
];

#[test]
fn templates_write_as_in_transformers() {
    let family = family("chatml");
    let conversation = Conversation::chat(&sample()).unwrap();
    let mut wrong = Vec::new();
    for (template, expected) in SNIPPETS {
        let ids = chat(template, family.settings(), &family.tokenizer()).prompt(&conversation);
        let text = ids.map(|ids| family.tokenizer().decode(&ids, false).unwrap());
        if text.as_deref() != Ok(expected) {
            wrong.push(format!("{template:?}: {text:?}, expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn settings_are_variables() {
    let family = family("chatml");
    let mut settings = TemplateSettings {
        variables: json!({"enable_thinking": false}).as_object().unwrap().clone(),
        ..family.settings()
    };
    settings.special_tokens.insert("bos_token".into(), "<|endoftext|>".into());
    let template = "{{ bos_token }}{{ enable_thinking }}{{ pad_token }}{{ add_generation_prompt }}";
    let ids = chat(template, settings, &family.tokenizer()).prompt(&conversation(&[("user", "x")])).unwrap();
    let bos = family.tokenizer().token_to_id("<|endoftext|>").unwrap();
    assert_eq!((ids[0], family.tokenizer().decode(&ids[1..], false).unwrap()), (bos, "FalseTrue".to_owned()));
}

#[test]
fn a_template_refuses_a_conversation_in_its_own_words() {
    let family = family("chatml");
    let refused = |template: &str| {
        let refused = chat(template, family.settings(), &family.tokenizer()).tokens(&conversation(&[("user", "x")]));
        match refused.unwrap_err() {
            ConversationError::Template { problem } => problem,
            other => panic!("{other}"),
        }
    };
    assert_eq!(refused("\n{{ raise_exception('no ' + messages[0].role) }}"), "no user (line 2)");
    assert!(refused("{{ messages[0].content.nothing() }}").contains("nothing"));
    assert!(refused("{{ missing.field }}").contains("undefined"));
    assert!(refused("{{ strftime_now('%') }}").contains("strftime_now"));
    assert!(
        refused("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}").contains("fuel")
    );
    assert!(refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").contains("recursion"));
}
