//! Two macros for the two forms of a choice in a Kubernetes API: an enum of strings, and a union. A union has a field
//! `type`, and an object with the settings of the type, as in `{type: Llama, llama: {...}}`. A structural schema can't
//! express a field that is either a string or an object.

/// Defines an enum of strings, with the spelling that YAML uses.
macro_rules! string_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $spelling:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $spelling)] $variant,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the string of this value in a job file.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $spelling,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// The object with the settings of a union's member.
pub(crate) trait Payload: Sized {
    /// Returns the settings that apply if the object is absent. Returns `None` if the object is required.
    fn when_absent() -> Option<Self> {
        None
    }
}

/// Returns the schema's rules for a union's member. The first rule refuses a `type` without its object, unless the
/// object is optional. The second rule refuses an object of another `type`, unless the union has only one member.
pub(crate) fn member_rules(
    spelling: &str,
    key: &str,
    is_required: bool,
    is_only: bool,
) -> impl Iterator<Item = serde_json::Value> {
    let missing = serde_json::json!({
        "rule": format!("self.type != '{spelling}' || has(self.{key})"),
        "message": format!("`type` is {spelling}, but `{key}` is missing: add `{key}: {{...}}`"),
    });
    let foreign = serde_json::json!({
        "rule": format!("self.type == '{spelling}' || !has(self.{key})"),
        "message": format!("`{key}` is given, but `type` is not {spelling}: remove `{key}` or write `type: {spelling}`"),
    });
    is_required.then_some(missing).into_iter().chain((!is_only).then_some(foreign))
}

/// Defines a union: an enum in Rust, and `{type: Llama, llama: {...}}` in YAML and in the schema. Deserialization
/// refuses a required object that is missing, and an object of another type.
macro_rules! union {
    (
        $(#[$meta:meta])*
        pub enum $name:ident ($tag:ident, $fields:ident) {
            $($(#[$doc:meta])* $variant:ident = $spelling:literal { $($field:ident as $key:literal: $payload:ty)? })+
        }
    ) => {
        string_enum! {
            /// The selected member of the union.
            pub enum $tag { $($(#[$doc])* $variant = $spelling,)+ }
        }

        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name { $($(#[$doc])* $variant $(($payload))?,)+ }

        $(#[$meta])*
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        struct $fields {
            /// The selected member. Its settings are in the field of the same name.
            #[serde(rename = "type")]
            tag: $tag,
            $($(
                #[serde(rename = $key, default, skip_serializing_if = "Option::is_none")]
                $field: Option<$payload>,
            )?)+
        }

        impl TryFrom<$fields> for $name {
            type Error = String;

            fn try_from(#[allow(unused_mut)] mut fields: $fields) -> Result<Self, String> {
                let tag = fields.tag;
                let union = match tag {
                    $($tag::$variant => Self::$variant $(({
                        use crate::string_enum::Payload;
                        fields.$field.take().or_else(<$payload>::when_absent).ok_or_else(|| {
                            format!("`type` is {tag}, but `{key}` is missing: add `{key}: {{...}}`", key = $key)
                        })?
                    }))?,)+
                };
                $($(if fields.$field.is_some() {
                    return Err(format!(
                        "`type` is {tag}, but `{key}` is given too: remove `{key}` or write `type: {spelling}`",
                        key = $key, spelling = $spelling,
                    ));
                })?)+
                Ok(union)
            }
        }

        impl From<$name> for $fields {
            fn from(union: $name) -> Self {
                let tag = match &union { $($name::$variant { .. } => $tag::$variant,)+ };
                #[allow(unused_mut)]
                let mut fields = Self { tag, $($($field: None,)?)+ };
                #[allow(irrefutable_let_patterns)]
                { $($(if let $name::$variant(payload) = &union { fields.$field = Some(payload.clone()); })?)+ }
                fields
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $fields::from(self.clone()).serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $fields::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut schema = $fields::json_schema(generator);
                let is_only = [$($spelling,)+].len() == 1;
                let mut rules = Vec::new();
                $($(
                    let is_required = <$payload as crate::string_enum::Payload>::when_absent().is_none();
                    rules.extend(crate::string_enum::member_rules($spelling, $key, is_required, is_only));
                )?)+
                if !rules.is_empty() {
                    schema.insert("x-kubernetes-validations".into(), rules.into());
                }
                schema
            }
        }
    };
}
