//! What goes in and what comes out.

use super::*;
use crate::agent::protocol::OUTPUT_LIMIT;
use std::{fs, os::unix::fs::symlink, process::Command};

#[tokio::test]
async fn inputs_and_outputs_are_any_bytes() {
    let agent = Agent::start();
    let (from, to) = (agent.path("in/deep/file"), agent.path("out/file"));
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let mut copy = step("copy", &format!("cat {} >{} && printf \"$SIZE\" >>{1}", from.display(), to.display()));
    copy.files = vec![input(&from, &bytes)];
    copy.outputs = vec![output("file", &to)];
    copy.env.insert("SIZE".to_owned(), "a $(b) ä".to_owned());
    let result = agent.run(copy).await;
    assert!(result.succeeded(), "{result:?}");
    assert_eq!(output_bytes(&result, "file"), [&bytes[..], "a $(b) ä".as_bytes()].concat());
}

#[tokio::test]
async fn a_step_has_its_own_directories() {
    let agent = Agent::start();
    let mut where_am_i = step("dirs", "pwd >where; echo \"$TMPDIR\" >>where; touch \"$TMPDIR/x\" && test -w \"$HOME\"");
    where_am_i.outputs = vec![output("where", Path::new("where"))];
    let result = agent.run(where_am_i).await;
    assert!(result.succeeded(), "{result:?}");
    let work = agent.path("work/dirs-1");
    assert_eq!(String::from_utf8(output_bytes(&result, "where")).unwrap(), format!("{0}\n{0}/tmp\n", work.display()));
}

#[tokio::test]
async fn a_missing_output_is_named() {
    let agent = Agent::start();
    let mut silent = step("silent", "true");
    silent.outputs = vec![output("host", &agent.path("out/host"))];
    let result = agent.run(silent).await;
    assert_eq!(result.exit_code, Some(0));
    assert_error(&result, &["the output host is missing", "/out/host"]);
}

#[tokio::test]
async fn what_an_earlier_step_left_is_no_output() {
    let agent = Agent::start();
    let path = agent.path("host");
    fs::write(&path, "old").unwrap();
    let mut silent = step("silent", "true");
    silent.outputs = vec![output("host", &path)];
    assert_error(&agent.run(silent).await, &["the output host is missing"]);
}

#[tokio::test]
async fn one_path_may_be_input_and_output() {
    let agent = Agent::start();
    let path = agent.path("config");
    let mut edit = step("edit", &format!("echo b >>{}", path.display()));
    edit.files = vec![input(&path, b"a\n")];
    edit.outputs = vec![output("config", &path)];
    assert_eq!(output_bytes(&agent.run(edit).await, "config"), b"a\nb\n");
}

#[tokio::test]
async fn outputs_over_the_limit_are_refused() {
    let agent = Agent::start();
    let (a, b) = (agent.path("a"), agent.path("b"));
    let half = OUTPUT_LIMIT / 2;
    let script = |more: usize| {
        format!("head -c {half} /dev/zero >{}; head -c {} /dev/zero >{}", a.display(), half + more, b.display())
    };
    let mut fits = step("fits", &script(0));
    fits.outputs = vec![output("a", &a), output("b", &b)];
    let mut over = step("over", &script(1));
    over.outputs = fits.outputs.clone();
    assert!(agent.run(fits).await.succeeded());
    assert_error(&agent.run(over).await, &["too large", "the output b", "524288"]);
}

#[tokio::test]
async fn an_output_that_is_no_file_holds_nobody_up() {
    let agent = Agent::start();
    let path = agent.path("odd");
    for (name, make) in [("fifo", "mkfifo"), ("folder", "mkdir"), ("device", "ln -s /dev/zero")] {
        let mut odd = step(name, &format!("rm -rf {0}; {make} {0}", path.display()));
        odd.outputs = vec![output("odd", &path)];
        assert_error(&agent.run(odd).await, &["the output odd must be a regular file"]);
    }
    fs::remove_file(&path).unwrap();
    let mut circle = step("loop", &format!("ln -s {0} {0}", path.display()));
    circle.outputs = vec![output("odd", &path)];
    assert_error(&agent.run(circle).await, &["the output odd cannot be read"]);
}

#[tokio::test]
async fn pipes_and_links_that_are_in_the_way_are_removed() {
    let agent = Agent::start();
    let (fifo, link, kept) = (agent.path("fifo"), agent.path("link"), agent.path("kept"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::write(&kept, "kept").unwrap();
    symlink(&kept, &link).unwrap();
    let mut write = step("write", &format!("echo 1 >{}; echo 2 >{}", fifo.display(), link.display()));
    write.outputs = vec![output("fifo", &fifo), output("link", &link)];
    let result = agent.run(write).await;
    assert_eq!((output_bytes(&result, "fifo"), output_bytes(&result, "link")), (b"1\n".to_vec(), b"2\n".to_vec()));
    assert_eq!(fs::read_to_string(kept).unwrap(), "kept");
}

#[tokio::test]
async fn an_input_that_cannot_be_written_is_named_with_the_remedy() {
    let agent = Agent::start();
    fs::write(agent.path("file"), "").unwrap();
    let fifo = agent.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (at, path) in [agent.path("file/x"), PathBuf::from("/proc/nowhere/x"), fifo].iter().enumerate() {
        let mut unwritable = step(&format!("unwritable{at}"), "true");
        unwritable.files = vec![input(path, b"x")];
        let result = agent.run(unwritable).await;
        assert_eq!(result.exit_code, None);
        assert_error(&result, &["the input file", path.to_str().unwrap(), "like /tmp"]);
    }
    let mut garbled = step("garbled", "true");
    garbled.files = vec![InputFile { path: "x".to_owned(), content: "*".to_owned() }];
    assert_error(&agent.run(garbled).await, &["input file x is not Base64"]);
}
