//! The real trainer with a volume that dies or fails where the environment says, see `stagecoach_tests::faulty`, and
//! with a stage that computes wrong, see `bit_flip`.

mod bit_flip;

fn main() {
    std::process::exit(stagecoach::cli::main(stagecoach_tests::faulty::mount));
}
