//! The real trainer with two kinds of faults that environment variables select: a volume that fails or ends the process
//! (see `stagecoach_tests::faulty`), and a stage that computes wrong results (see `bit_flip`).

mod bit_flip;

fn main() {
    stagecoach::cli::main(stagecoach_tests::faulty::mount)
}
