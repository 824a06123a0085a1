//! `stagecoach`: the launcher, a stage, and the tools around them.

fn main() {
    stagecoach::cli::main(stagecoach::cli::open_local_volume)
}
