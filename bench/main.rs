//! Measures what `docs/performance.md` shows, on a cluster that `tests/cluster` made with Sluice in it; `make bench`
//! runs it.
//!
//! Without an argument it does all of it and writes `bench/results.json` and the tables of the page. Named parts
//! (`hooks`, `post`, `quiet`, `server`, `full`) are measured and printed alone; `tables` writes the page anew.
//! `hostile` is what `make bench-hostile` runs: its results are written beside the others.

mod attacks;
mod bare;
mod client;
mod fill;
mod helm;
mod hooks;
mod hostile;
mod load;
mod machine;
mod objects;
mod plain;
mod pods;
mod post;
mod quiet;
mod results;
mod reviews;
mod sample;
mod server;

use anyhow::Context as _;
use bare::Bare;
use fill::Template;
use kube::Client;
use load::{Load, Target};
use results::Results;
use reviews::Changed;
use sample::ms;
use serde_json::Value;
use server::Server;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many sandboxes there are where there are few.
const FEW: usize = 10;
const SIZES: [(&str, usize); 2] = [("4 KiB", 4 * 1024), ("64 KiB", 64 * 1024)];
const CONNECTIONS: [usize; 3] = [1, 16, 64];
/// Sluice and the bare server in turn so many times, since the machine is not the same at each moment.
const TURNS: usize = 3;
/// Loads on one connection, of which the quickest counts.
const LOADS: usize = 5;
/// A process that has just begun is not at rest.
const REST: Duration = Duration::from_secs(15);

/// The bare server's too, so that it is not this that makes the difference.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let parts: Vec<String> = std::env::args().skip(1).collect();
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("another cryptography provider is installed already"))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (file, page) = (root.join("bench/results.json"), root.join("docs/performance.md"));
    if parts == [bare::ARGUMENT] {
        return bare::serve().await;
    }
    let stored = || -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(&file).context("bench/results.json")?)?)
    };
    if parts == ["tables"] {
        return results::put_into(&page, &stored()?);
    }
    let mut results = Results::default();
    if parts == ["hostile"] {
        hostile::measure(&client::client(None).await?, &mut results).await?;
        let all = results.into_hostile(root, stored()?)?;
        println!("{}", results::hostile_markdown(&all)?);
        std::fs::write(&file, format!("{all:#}\n"))?;
        return results::put_into(&page, &all);
    }
    measure(root, &parts, &mut results).await?;
    let all = results.into_json(root, &stored().unwrap_or_default())?;
    println!("{}", results::markdown(&all)?);
    if parts.is_empty() {
        std::fs::write(&file, format!("{all:#}\n"))?;
        results::put_into(&page, &all)?;
    }
    Ok(())
}

async fn measure(root: &Path, parts: &[String], results: &mut Results) -> anyhow::Result<()> {
    let asked = |part: &str| parts.is_empty() || parts.iter().any(|asked| asked == part);
    let client = client::client(None).await?;
    objects::set_up(&client).await?;
    if asked("hooks") {
        let helm = helm::added(root, results).await?;
        hooks::measure(&client, helm, results).await?;
    }
    if asked("post") {
        post::measure(&client, results).await?;
    }
    quiet::set_up(&client, FEW).await?;
    let template = if asked("full") { Some(Template::make(&client).await?) } else { None };
    if asked("quiet") {
        quiet::measure(&client, "with Sluice", results).await?;
    }
    // From here on the server is a process of ours.
    helm::helm(&["uninstall", "sluice", "--namespace", server::NAMESPACE, "--wait"]).await?;
    if asked("quiet") {
        quiet::measure(&client, "without Sluice", results).await?;
    }
    if asked("server") || asked("full") {
        few(&client, results).await?;
    }
    if let Some(template) = template {
        full(&client, &template, results).await?;
    }
    planner(results)
}

/// The server alone, with few sandboxes.
async fn few(client: &Client, results: &mut Results) -> anyhow::Result<()> {
    let server = Server::start(client).await?;
    tokio::time::sleep(REST).await;
    server.settle().await?;
    results.key("rss_idle_mib", server.memory()?.0);
    let bare = Bare::start().await?;

    let review = reviews::update(client, Changed::Spec, SIZES[0].1).await?;
    machine::quiet().await?;
    let [alone, bare_alone] = undisturbed([&server.target, &bare.target], &review).await?;
    results.time("the bare server beside, 1 connection: p50", bare_alone.sample.median());
    results.key("nohook_p50_ms", ms(alone.sample.median()));
    results.key("nohook_p99_ms", ms(alone.sample.percentile(99)));
    let labelled = reviews::update(client, Changed::Label, SIZES[0].1).await?;
    let labelled = server.target.load(&labelled, 1).await?;
    results.time("a review of 4 KiB that changes only a label, 1 connection: p50", labelled.sample.median());

    let mut ratios = Vec::new();
    for _ in 0..TURNS {
        let own = server.target.load(&review, 64).await?.per_second;
        ratios.push(own / bare.target.load(&review, 64).await?.per_second);
    }
    ratios.sort_by(f64::total_cmp);
    results.key("reviews_vs_bare", ratios[TURNS / 2]);

    for (size, bytes) in SIZES {
        let review = reviews::update(client, Changed::Spec, bytes).await?;
        for connections in CONNECTIONS {
            for (who, target) in [("Sluice", &server.target), ("bare server", &bare.target)] {
                loaded(&format!("{who}, reviews of {size}"), target, &review, connections, results).await?;
            }
        }
    }
    results.detail("server memory after these loads", server.memory()?.0, "MiB");
    server.stop().await
}

/// Of several loads on one connection, the two in turn, each one's quickest: what else the machine does makes a load
/// slower and never quicker.
async fn undisturbed(targets: [&Target; 2], review: &[u8]) -> anyhow::Result<[Load; 2]> {
    let mut loads = [Vec::new(), Vec::new()];
    for _ in 0..LOADS {
        for (target, loads) in targets.iter().zip(&mut loads) {
            let load = target.load(review, 1).await?;
            eprintln!("bench: a load on one connection: p50 {:.4} ms", ms(load.sample.median()));
            loads.push(load);
        }
    }
    let quickest = |mut loads: Vec<Load>| {
        loads.sort_by_key(|load| load.sample.median());
        loads.swap_remove(0)
    };
    Ok(loads.map(quickest))
}

async fn loaded(
    what: &str,
    target: &Target,
    review: &[u8],
    connections: usize,
    results: &mut Results,
) -> anyhow::Result<()> {
    let load = target.load(review, connections).await?;
    let plural = if connections == 1 { "connection" } else { "connections" };
    let what = format!("{what}, {connections} {plural}");
    results.detail(what.clone(), load.per_second, "/s");
    results.time(format!("{what}: p50"), load.sample.median());
    results.time(format!("{what}: p99"), load.sample.percentile(99));
    results.time(format!("{what}: slowest"), load.sample.slowest());
    Ok(())
}

/// The server alone, with many sandboxes.
async fn full(client: &Client, template: &Template, results: &mut Results) -> anyhow::Result<()> {
    results.detail("one sandbox with its record and 5 runs, as stored", template.bytes() as f64 / 1024.0, "KiB");
    template.fill(client).await?;
    let server = Server::start(client).await?;
    server.settle().await?;
    tokio::time::sleep(REST).await;
    let (now, most) = server.memory()?;
    results.key("rss_10k_mib", now);
    results.detail("the most memory while the server took them in", most, "MiB");
    let review = reviews::update(client, Changed::Spec, SIZES[0].1).await?;
    let bare = Bare::start().await?;
    machine::quiet().await?;
    let [own, bare] = undisturbed([&server.target, &bare.target], &review).await?;
    let p50 = own.sample.median();
    results.time("`nohook_p50_ms` with 10,000 sandboxes", p50);
    // Where this one has grown too, it is the machine.
    results.time("the bare server beside: p50", bare.sample.median());
    if let Some(before) = results.get("nohook_p50_ms") {
        results.key("growth_10k", ms(p50) / before);
    }
    server.stop().await
}

/// What `cargo bench --bench planner` found before, where it did.
fn planner(results: &mut Results) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    // TARGET/TRIPLE/PROFILE/examples/bench
    let found = own.ancestors().map(|folder| folder.join("criterion/planner")).find(|folder| folder.is_dir());
    let Some(folder) = found else { return Ok(()) };
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    for name in names {
        let Ok(text) = std::fs::read_to_string(name.join("new/estimates.json")) else { continue };
        let estimates: Value = serde_json::from_str(&text)?;
        let nanoseconds = estimates["median"]["point_estimate"].as_f64().context("criterion's estimate")?;
        let what = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        results.detail(format!("the planner alone: {what}"), nanoseconds / 1000.0, "µs");
    }
    Ok(())
}
