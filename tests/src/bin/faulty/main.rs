//! The real trainer with two kinds of faults that the environment chooses: a volume that dies or fails (see
//! `stagecoach_tests::faulty`), and a stage that computes wrongly (see `bit_flip`).

mod bit_flip;

fn main() {
    std::process::exit(stagecoach::cli::main(stagecoach_tests::faulty::mount));
}
