//! The error message of a stage that has run out of memory.

use indicatif::HumanBytes;

/// Explains a panic with `message` if memory ran out: names the failed allocation, the memory that the plan has for
/// this stage, and the remedy. Returns `None` for any other message.
pub(in crate::train) fn explain(message: &str, planned_bytes: Option<u64>) -> Option<String> {
    let found = message.find("out of memory")?;
    // the text begins with libtorch's message and ends before the source location and the trace
    let began = message[..found].rfind(['"', '\n']).map_or(0, |at| at + 1);
    let ends = ["\\n", "\n", "\""].iter().filter_map(|end| message[found..].find(end));
    let what = &message[began..ends.min().map_or(message.len(), |length| found + length)];
    let planned =
        planned_bytes.map_or_else(String::new, |bytes| format!("the plan has {} for this stage; ", HumanBytes(bytes)));
    Some(format!(
        "{}; {planned}use more stages, more microbatches or pipeline.recompute: Full, or set pipeline.memoryLimit, so \
         that the schedule type Auto chooses a plan that fits",
        what.trim().trim_end_matches('.')
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_the_plan_and_what_to_change_are_said() {
        let gpu = "panicked at tch/src/tensor.rs:1:2:\ncalled `Result::unwrap()` on an `Err` value: Torch(\"CUDA out of memory. Tried to \
                   allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB.\\nException raised from malloc at ...\")";
        let advice = "use more stages, more microbatches or pipeline.recompute: Full, or set pipeline.memoryLimit, so \
                      that the schedule type Auto chooses a plan that fits";
        assert_eq!(
            explain(gpu, Some(3 << 30)).unwrap(),
            format!(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB; the plan has 3.00 GiB for \
                 this stage; {advice}"
            )
        );
        let cpu = "panicked at a.rs:1:2:\nout of memory: no 4096 bytes for a tensor\nmore";
        assert_eq!(explain(cpu, None).unwrap(), format!("out of memory: no 4096 bytes for a tensor; {advice}"));
        assert_eq!(explain("panicked at a.rs:1:2:\nindex out of bounds", Some(1)), None);
    }
}
