//! Faults, and changes by the user.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::Simulation;
use super::process::SimulatedProcess;

impl Simulation {
    /// Applies the event that `kind` selects: a fault, a change by the user, or only the passing of time. `pick`
    /// selects the details.
    pub(super) fn inject_fault(&mut self, kind: u8, pick: u8) {
        let now = self.now;
        let alive: Vec<_> = (0..self.processes.len()).filter(|index| self.processes[*index].is_alive()).collect();
        let victim = (!alive.is_empty()).then(|| alive[pick as usize % alive.len()]);
        let spare = alive.iter().copied().find(|index| self.processes[*index].stands_by);
        match (kind % 20, victim) {
            (0..=2, Some(victim)) => {
                let code = [1, 74, 75, 137, 143, 3][pick as usize % 6];
                self.processes[victim].end(Exit::with_code(code), now);
            }
            (3, Some(victim)) if pick > 240 => {
                self.invalid_config_happened = true;
                self.processes[victim].end(Exit::with_code(78), now);
            }
            (4, Some(victim)) => self.processes[victim].hung = true,
            (5, Some(victim)) => {
                self.processes[victim].hung = true;
                self.processes[victim].unreachable = true;
            }
            (6, Some(victim)) => {
                self.processes.remove(victim);
            }
            (7, Some(victim)) if self.processes[victim].instance.state != InstanceState::Terminating => {
                self.processes[victim].enter(InstanceState::Terminating, now);
            }
            (8, _) => self.desired.suspend = !self.desired.suspend,
            (9, _) => self.desired.mesh = Mesh::pipeline(1 + u32::from(pick) % 3),
            (10, _) => self.desired.revision += 1,
            (11, _) => self.now = self.now.plus_seconds(pick.into()),
            (16, _) if spare.is_some() => {
                spare.into_iter().for_each(|index| self.processes[index].end(Exit::with_code(1), now));
            }
            (17, _) => self.hides_promotions = !self.hides_promotions,
            // the other stages lose their connection to stage 0, which still runs, and the group promotes a spare to
            // stage 0
            (18, _) if self.group.first().is_some_and(|member| member.0 == self.recorded.attempt.number) => {
                let incarnation = self.known.get(&0).map_or(0, |known| known + 1);
                self.promote(0, incarnation);
            }
            (19, _) => {
                self.take_lost_places();
                let took = |process: &&mut SimulatedProcess| process.instance.spare.is_some() && !process.stands_by;
                let living = self.processes.iter_mut().filter(|process| process.is_alive());
                living.filter(took).for_each(|process| process.end(Exit::with_code(1), now));
            }
            _ => {
                self.advance_instances();
            }
        }
    }
}
