//! `spec.pipeline.schedule`: a schedule of `stagecoach_pipeline`, a table in a file, or the fastest schedule.
//! `ScheduleSpec` has the form of the types that the macro `union!` generates. Its members are the entries of
//! `SCHEDULES`, Csv and Auto.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, EnumAccess, VariantAccess};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stagecoach_pipeline::{ChunkRule, ONE_F_ONE_B, SCHEDULES, ScheduleType};

use super::path::VolumePath;
use crate::string_enum::member_rules;

/// The order of forward and backward passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ScheduleFields", into = "ScheduleFields")]
pub enum ScheduleSpec {
    /// A schedule that Stagecoach implements, by its name.
    Named(ScheduleType),
    /// A schedule in a file, as a table in PyTorch's text form.
    Csv(CsvFile),
    /// The fastest schedule that Stagecoach implements. The planner chooses it.
    Auto,
}

/// A schedule in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CsvFile {
    /// The file, relative to the volume's root.
    #[schemars(with = "VolumePath")]
    pub path: String,
}

/// The order of forward and backward passes, by torch's names.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScheduleFields {
    /// The name of the schedule. The settings of Csv are in the field `csv`.
    #[serde(rename = "type")]
    name: ScheduleName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    csv: Option<CsvFile>,
}

/// A value of `type`.
struct ScheduleName(&'static str);

const CSV: &str = "Csv";
const AUTO: &str = "Auto";

/// All values of `type`.
const NAMES: &[&str] = &{
    let mut names = [CSV; SCHEDULES.len() + 2];
    let mut index = 0;
    while index < SCHEDULES.len() {
        names[index] = SCHEDULES[index].name;
        index += 1;
    }
    names[index + 1] = AUTO;
    names
};

impl ScheduleSpec {
    /// Iterates over all schedules that need no file.
    pub fn all() -> impl Iterator<Item = Self> {
        SCHEDULES.iter().copied().map(Self::Named).chain([Self::Auto])
    }

    /// Returns the value of `type`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Named(schedule) => schedule.name,
            Self::Csv(_) => CSV,
            Self::Auto => AUTO,
        }
    }

    /// Returns the number of chunks of each stage if the schedule allows only one number. Returns `None` if the job or
    /// the table of Csv determines the number.
    pub(crate) fn fixed_chunks(&self) -> Option<FixedChunks> {
        let (chunks, predicate) = match self {
            Self::Named(schedule) => (
                schedule.chunks.fixed()?,
                match schedule.chunks {
                    ChunkRule::Two => "has two chunks per stage: remove virtualStages or set it to 2",
                    _ => "has one chunk per stage: set virtualStages to 1, or use Interleaved1F1B",
                },
            ),
            Self::Csv(_) => return None,
            Self::Auto => (1, "chooses the number of chunks per stage: remove virtualStages, or name a schedule"),
        };
        Some(FixedChunks { chunks: chunks as u32, predicate })
    }
}

/// The number of chunks per stage of a schedule that allows only one number. It is the default of `virtualStages`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct FixedChunks {
    pub(crate) chunks: u32,
    /// The end of a message that begins with the schedule's name. It states the number of chunks and the remedy.
    pub(crate) predicate: &'static str,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self::Named(ONE_F_ONE_B)
    }
}

impl TryFrom<ScheduleFields> for ScheduleSpec {
    type Error = String;

    fn try_from(ScheduleFields { name: ScheduleName(name), csv }: ScheduleFields) -> Result<Self, String> {
        match (name, csv) {
            (CSV, Some(csv)) => Ok(Self::Csv(csv)),
            (CSV, None) => Err("`type` is Csv, but `csv` is missing: add `csv: {...}`".into()),
            (_, Some(_)) => Err(format!("`type` is {name}, but `csv` is given too: remove `csv` or write `type: Csv`")),
            _ => Ok(SCHEDULES.iter().find(|schedule| schedule.name == name).map_or(Self::Auto, |s| Self::Named(*s))),
        }
    }
}

impl From<ScheduleSpec> for ScheduleFields {
    fn from(schedule: ScheduleSpec) -> Self {
        let name = ScheduleName(schedule.name());
        Self { name, csv: if let ScheduleSpec::Csv(csv) = schedule { Some(csv) } else { None } }
    }
}

impl JsonSchema for ScheduleSpec {
    fn schema_name() -> Cow<'static, str> {
        "ScheduleSpec".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = ScheduleFields::json_schema(generator);
        let rules: Vec<_> = member_rules(CSV, "csv", true, false).collect();
        schema.insert("x-kubernetes-validations".into(), rules.into());
        schema
    }
}

impl Serialize for ScheduleName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for ScheduleName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = ScheduleName;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("enum ScheduleName")
            }

            fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<ScheduleName, A::Error> {
                let (name, variant): (Cow<'de, str>, _) = access.variant()?;
                variant.unit_variant()?;
                let known = NAMES.iter().find(|known| **known == name);
                known.map(|name| ScheduleName(name)).ok_or_else(|| de::Error::unknown_variant(&name, NAMES))
            }
        }
        deserializer.deserialize_enum("ScheduleName", NAMES, Visitor)
    }
}

impl JsonSchema for ScheduleName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ScheduleName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let more = [
            (CSV, "A table in a file, in torch's text form."),
            (AUTO, "The fastest built-in schedule by simulation, with up to 4 chunks a stage, within `memoryLimit`."),
        ];
        let all = SCHEDULES.iter().map(|schedule| (schedule.name, schedule.description)).chain(more);
        let choices: Vec<_> =
            all.map(|(name, description)| json_schema!({ "enum": [name], "description": description })).collect();
        json_schema!({ "oneOf": choices })
    }
}
