//! The validating webhook of sandboxes: runs the pre-phases of a change before it is let through.

use super::find::{self, FindError, Finder};
use super::granted::Rights;
use super::hold::{Holder, Requester, Wish};
use super::pass::Passed;
use super::review::{Answer, Audit, Operation, Request};
use super::trail::Trail;
use super::waits::{self, SHORTEST, Waits};
use crate::api::{Phase, labels};
use crate::controller::events::Recorder;
use crate::engine::index::RunEntry;
use crate::engine::life::{Asker, Obstacle, Stored};
use crate::engine::{Engine, EngineError};
use crate::plan::plugins::Plugins;
use crate::plan::runs::{self, Change, PlannedRun, Side};
use crate::plan::seal::Sealer;
use crate::plan::timing;
use crate::plan::{check, message, room};
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::time::Instant;

/// A run is one object in the API server, and its steps are worked at in one process.
const MOST_STEPS: usize = 256;
/// Longer warnings are cut by some clients.
pub const WARNING_LIMIT: usize = 256;
/// The HTTP status of a change that is not right as it is.
const UNFIT: u16 = 422;

/// What the admission of sandboxes needs.
pub struct Admission {
    pub engine: Arc<Engine>,
    pub plugins: Arc<RwLock<Plugins>>,
    pub finder: Finder,
    pub rights: Rights,
    pub holder: Holder,
    pub waits: Waits,
    pub recorder: Arc<Recorder>,
    /// Which forks an admission has seen.
    pub sealer: Arc<Sealer>,
    /// The user that Sluice itself is to the API server.
    pub own_user: Option<String>,
}

/// How a change that could not be let through is answered, as an error so that `?` ends the work.
pub(super) type Judged<T> = Result<T, Answer>;

/// What a change runs before it is let through.
#[derive(Default)]
struct Plan {
    runs: Vec<PlannedRun>,
    /// Why a deletion runs less than it may have to.
    skipped: Option<String>,
}

impl Admission {
    /// Answers a review of a sandbox; `deadline` is when the answer must leave.
    pub async fn sandbox(&self, request: &Request, deadline: Instant) -> Answer {
        let mut trail = Trail::default();
        let judged = self.judge(request, deadline, &mut trail).await;
        trail.onto(judged.unwrap_or_else(|answer| answer))
    }

    async fn judge(&self, request: &Request, deadline: Instant, trail: &mut Trail) -> Judged<Answer> {
        let (old, new) = (&request.old_object, &request.object);
        let change = match request.operation {
            Operation::Create => Change::Create { new },
            Operation::Update => Change::Update { old, new },
            Operation::Delete => Change::Delete { old },
            Operation::Other => return Ok(Answer::allow()),
        };
        if matches!(change, Change::Create { .. } | Change::Update { .. })
            && new["metadata"]["deletionTimestamp"].is_null()
            && self.engine.is_closed(&request.namespace)
        {
            let namespace = &request.namespace;
            return Err(Answer::forbid(format!(
                "no sandbox may be in namespace {namespace:?}, where plugins run: make it where the workloads are that it forks"
            )));
        }
        self.check_skips(request, deadline, trail).await?;
        if !change.counts(Side::Pre) {
            return self.judge_quiet(request, change, deadline, trail).await;
        }
        let plan = self.plan_with_newest(change, deadline).await?;
        if !matches!(change, Change::Delete { .. }) {
            self.check_rights(request, deadline, trail).await?;
        }
        if request.dry_run == Some(true) {
            let skipped = plan.skipped.iter().map(|why| skip_warning("would be", why));
            return Ok(Answer::warn(plan.runs.iter().map(would_run).chain(skipped).collect()));
        }
        let answer = self.pass_all(request, &plan.runs, deadline, trail).await?;
        Ok(match plan.skipped {
            Some(why) => answer.joined(self.skip(request, &why)),
            None => answer,
        })
    }

    /// What is being deleted runs no pre-phase, but its spec still says what its post-delete runs, and as whom.
    async fn judge_quiet(
        &self,
        request: &Request,
        change: Change<'_>,
        deadline: Instant,
        trail: &mut Trail,
    ) -> Judged<Answer> {
        if request.operation == Operation::Update {
            if request.old_object["spec"] != request.object["spec"] {
                self.plan(change)?;
                self.check_rights(request, deadline, trail).await?;
            } else if self.seals_anew(request) {
                self.check_rights(request, deadline, trail).await?;
            }
        }
        Ok(Answer::allow())
    }

    /// The plan of a change; where it fails, or lacks something, once more with plugins that were applied a moment ago and
    /// may not have come by the watch yet.
    async fn plan_with_newest(&self, change: Change<'_>, deadline: Instant) -> Judged<Plan> {
        let planned = self.plan(change);
        match &planned {
            Ok(Plan { skipped: None, .. }) => return planned,
            Err(Answer::Deny { code, .. }) if *code != UNFIT => return planned,
            _ => {}
        }
        // What is left is for the phases, however long others keep the search.
        let until = Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2;
        match self.finder.find(change, until).await {
            Ok(()) => {}
            // What goes is let go though its plugin is not known: a sandbox must never be stuck.
            Err(error) if matches!(change, Change::Delete { .. }) => find::go_on(&error),
            // It would only have been looked whether one has changed since.
            Err(_) if self.finder.knows_all(change) => return planned,
            Err(error @ FindError::Api { .. }) => return Err(Answer::broken(message::with_causes(&error))),
            Err(error) => return Err(busy(&error.to_string())),
        }
        self.plan(change)
    }

    /// Runs the phases of a change, or joins them, as far as time allows.
    async fn pass_all(
        &self,
        request: &Request,
        planned: &[PlannedRun],
        deadline: Instant,
        trail: &mut Trail,
    ) -> Judged<Answer> {
        let creates = request.operation == Operation::Create;
        if planned.is_empty() {
            // Though nothing runs before it, what runs after it must not meet the last phases of its name's former owner.
            if creates && runs::declared(&request.object).is_ok_and(|resources| !resources.is_empty()) {
                let seat = self.holder.seat(self.engine.replicas.alive());
                self.refuse_existing(request, seat.is_some(), deadline).await?;
            }
            return Ok(Answer::allow());
        }
        if request.operation == Operation::Delete
            && let Some(reason) = request.old_object["metadata"]["annotations"][labels::SKIP_PRE_DELETE].as_str()
        {
            let why = format!("annotation {} says: {reason}", labels::SKIP_PRE_DELETE);
            return Ok(self.skip(request, &why));
        }
        let requester = self.requester(request);
        let seat = self.holder.seat(self.engine.replicas.alive());
        if seat.is_none() && planned.iter().any(is_named_anew) {
            return Err(busy(
                "as many changes as there is room for are waiting, and one without a name cannot be joined",
            ));
        }
        let keys: Vec<String> = planned.iter().map(|run| run.key.clone()).collect();
        let (uid, generation) = stored_as(request);
        let mut passed = Vec::new();
        let mut warnings = Vec::new();
        'change: loop {
            self.clear_way(planned, &requester, seat.is_some(), deadline).await?;
            if creates {
                self.refuse_existing(request, seat.is_some(), deadline).await?;
            }
            passed.clear();
            warnings.clear();
            for planned in planned {
                let (target, planned) = (planned.target.clone(), planned.clone());
                let admits = (keys.len() == 1).then_some((uid, generation));
                let wish = Wish { planned, request: &requester, keys: &keys, admits, seat: seat.as_ref(), deadline };
                match self.pass(wish, trail).await? {
                    Passed::On { run, admitted, warning } => {
                        passed.push((run, admitted));
                        warnings.extend(warning);
                    }
                    Passed::LetGo { why } => return Ok(self.skip(request, &why)),
                    // What was quicker has its turn first.
                    Passed::Overtaken => {
                        if let Some(stored) = &requester.stored {
                            self.refuse_outdated(&target, stored, deadline).await?;
                        }
                        continue 'change;
                    }
                }
            }
            break;
        }
        for (entry, _) in passed.iter().filter(|(_, admitted)| !admitted) {
            self.admit(entry, request, deadline).await?;
        }
        Ok(Answer::warn(warnings))
    }

    /// Lets a deletion through whose pre-delete is not run, or has failed, and tells so wherever one may look.
    fn skip(&self, request: &Request, why: &str) -> Answer {
        let target = runs::target(&request.old_object);
        let user = request.user_info.username.clone();
        let note = format!("{user} deletes the sandbox, and its pre-delete does not stand in the way: {why}");
        tracing::warn!(%target, user, why, "a pre-delete is skipped");
        self.engine.outcomes.skipped.fetch_add(1, Ordering::Relaxed);
        let (recorder, event) = (self.recorder.clone(), note.clone());
        tokio::spawn(async move { recorder.warning(&target, "PreDeleteSkipped", "PreDelete", &event).await });
        Answer::Allow {
            warnings: vec![skip_warning("was", why)],
            patch: Vec::new(),
            audit: vec![Audit { key: "pre-delete-skipped", value: note }],
        }
    }

    fn plan(&self, change: Change<'_>) -> Judged<Plan> {
        let plugins = self.plugins.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Change::Delete { old } = change {
            let (runs, failed) = runs::plan_deletion(old, Side::Pre, &plugins);
            let why: Vec<String> = failed.iter().map(ToString::to_string).collect();
            return Ok(Plan { runs, skipped: (!why.is_empty()).then(|| why.join("; ")) });
        }
        let planned = runs::plan(change, Side::Pre, &plugins)
            .map_err(|error| Answer::deny(message::cut(&error.to_string(), message::DENIAL_LIMIT)))?;
        let steps: usize = planned.iter().flat_map(|run| &run.resources).map(|resource| resource.steps.len()).sum();
        if steps > MOST_STEPS {
            return Err(Answer::deny(format!(
                "spec.resources: this change would run {steps} steps, and at most {MOST_STEPS} are run for one: give the sandbox fewer resources at a time, or the plugins fewer steps"
            )));
        }
        if let Change::Create { new } | Change::Update { new, .. } = change {
            if let Some(resource) = runs::unpinned(new) {
                return Err(busy(&format!("which version resource {resource:?} means by @latest is not known yet")));
            }
            if let Some(fault) = room::fault(change, &planned, &plugins) {
                return Err(Answer::deny(fault));
            }
            self.refuse_unsealed(new)?;
            let faults = check::sandbox(new, &plugins);
            if !faults.is_empty() {
                return Err(Answer::deny(listed(&faults)));
            }
        }
        Ok(Plan { runs: planned, skipped: None })
    }

    /// Nothing begins for a target while another change of it is undecided.
    async fn clear_way(
        &self,
        planned: &[PlannedRun],
        requester: &Requester,
        held: bool,
        deadline: Instant,
    ) -> Judged<()> {
        let Some(target) = planned.first().map(|p| &p.target) else { return Ok(()) };
        let keys: Vec<&str> = planned.iter().map(|p| p.key.as_str()).collect();
        let until = if held { deadline } else { Instant::now() };
        let cleared = self.holder.clear_way(&self.engine, target, &keys, requester.stored.as_ref(), until);
        match tokio::time::timeout_at(deadline + timing::ANSWER_MARGIN / 2, cleared).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(Obstacle::Undecided(run)))) => {
                let gap = waits::gap_until_decided(&self.engine.index, &run);
                let kind = &target.kind;
                let why = format!(
                    "another change of {kind} {target} was let through moments ago and is not stored yet (run {run})"
                );
                Err(later(&why, gap))
            }
            Ok(Ok(Some(Obstacle::Open(run) | Obstacle::Superseded(run)))) => {
                let gap = waits::gap_until(&self.engine.index, self.engine.index.get(&run).as_deref(), held);
                let kind = &target.kind;
                let why = format!("another change of {kind} {target} is under way: kubectl get phaserun {run} -w");
                Err(later(&why, gap))
            }
            Ok(Err(error)) => Err(Answer::broken(message::with_causes(&error))),
            Err(_) => Err(busy("the API server did not answer in time")),
        }
    }

    fn requester(&self, request: &Request) -> Requester {
        let old = &request.old_object;
        let stored = old.is_object().then(|| Stored::of(old));
        let user = Some(request.user_info.username.clone()).filter(|user| !user.is_empty());
        Requester {
            by: Asker::of(user.as_deref(), self.own_user.as_deref()),
            user,
            routing_key: old["status"]["routingKey"].as_str().map(str::to_owned),
            stored,
        }
    }

    /// Writes down that the request is let through, before it is.
    async fn admit(&self, entry: &Arc<RunEntry>, request: &Request, deadline: Instant) -> Judged<()> {
        let (uid, generation) = stored_as(request);
        let mut entry = entry.clone();
        loop {
            match tokio::time::timeout_at(deadline, self.engine.admit(&entry, uid, generation)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(EngineError::Refused { .. })) => {
                    return Err(busy("the phase's result was given up while the request was on its way"));
                }
                Ok(Err(error)) if error.is_outdated() => {
                    let read = tokio::time::timeout_at(deadline, self.engine.read(&entry.name)).await;
                    match read {
                        Ok(Ok(Some(run))) => entry = self.engine.index.observe(&run),
                        Ok(Ok(None)) => return Err(busy("the phase's run was deleted")),
                        Ok(Err(error)) => return Err(Answer::broken(message::with_causes(&error))),
                        Err(_) => return Err(busy("the API server did not answer in time")),
                    }
                }
                Ok(Err(error)) => return Err(Answer::broken(message::with_causes(&error))),
                Err(_) => return Err(busy("the API server did not answer in time")),
            }
        }
    }
}

/// UID and generation that the object has where the request is let through.
fn stored_as(request: &Request) -> (&str, i64) {
    let object = if request.operation == Operation::Delete { &request.old_object } else { &request.object };
    let metadata = &object["metadata"];
    (metadata["uid"].as_str().unwrap_or_default(), metadata["generation"].as_i64().unwrap_or_default())
}

/// Whether the API server chooses the name, another for each attempt, so that none can join what an earlier one began.
pub(super) fn is_named_anew(run: &PlannedRun) -> bool {
    let prefix = run.object["metadata"]["generateName"].as_str().filter(|prefix| !prefix.is_empty());
    let created = run.phase == Phase::PreCreate && run.old_object.is_none();
    created && prefix.is_some_and(|prefix| run.target.name.starts_with(prefix))
}

pub(super) fn busy(why: &str) -> Answer {
    later(why, SHORTEST)
}

pub(super) fn later(why: &str, gap: Duration) -> Answer {
    Answer::later(format!("{why}; make the same change again"), gap)
}

/// Several faults in one message.
pub fn listed(faults: &[check::Fault]) -> String {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    message::cut(&lines.join("\n"), message::DENIAL_LIMIT)
}

fn would_run(planned: &PlannedRun) -> String {
    let steps: Vec<String> = planned
        .resources
        .iter()
        .flat_map(|r| r.steps.iter().map(move |step| format!("{}/{}", r.name, step.name)))
        .collect();
    message::cut(&format!("{} would run: {}", planned.phase, steps.join(", ")), WARNING_LIMIT)
}

fn skip_warning(tense: &str, why: &str) -> String {
    message::cut(&format!("pre-delete {tense} skipped: {why}"), WARNING_LIMIT)
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
