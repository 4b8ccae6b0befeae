use super::*;

fn key(code: KeyCode, modifiers: KeyModifiers) -> Event {
    Event::Key(KeyEvent::new(code, modifiers))
}

// In raw mode Ctrl-C is a letter: who does not look for it cannot be left. A letter that is
// meant for nothing must not end it.
#[test]
fn keys_do_what_they_say() {
    let (none, held) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
    for (event, wanted) in [
        (key(KeyCode::Char('q'), none), Asked::Quit),
        (key(KeyCode::Char('Q'), KeyModifiers::SHIFT), Asked::Quit),
        (key(KeyCode::Esc, none), Asked::Quit),
        (key(KeyCode::Char('c'), held), Asked::Quit),
        (key(KeyCode::Char('d'), held), Asked::Quit),
        (key(KeyCode::Char('l'), held), Asked::Redraw),
        (Event::Resize(20, 5), Asked::Redraw),
        (key(KeyCode::Char('c'), none), Asked::Nothing),
        (key(KeyCode::Char('q'), held), Asked::Nothing),
        (key(KeyCode::Enter, none), Asked::Nothing),
    ] {
        assert_eq!(asked(&event), wanted, "{event:?}");
    }
    let released = KeyEvent::new_with_kind(KeyCode::Char('q'), none, KeyEventKind::Release);
    assert_eq!(asked(&Event::Key(released)), Asked::Nothing);
}

fn args(url: Option<&str>) -> TopArgs {
    TopArgs {
        url: url.map(str::to_owned),
        every: Duration::from_secs(1),
        once: true,
        config: None,
    }
}

// Whoever types nothing but the command has a server somewhere: the one that the folder's
// lock file names, with its metrics if it has some.
#[test]
fn a_server_is_found_by_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let common = Common {
        data: Some(folder.path().to_owned()),
        ..Common::for_tests()
    };
    let found = |common: &Common| find(&args(None), common).unwrap().to_string();
    assert_eq!(found(&common), "http://127.0.0.1:7171");
    let lock = folder.path().join("LOCK");
    std::fs::write(&lock, "pid 1\naddress http://127.0.0.1:9\n").unwrap();
    assert_eq!(found(&common), "http://127.0.0.1:9");
    let both = "pid 1\naddress http://127.0.0.1:9\nmetrics http://127.0.0.1:8/metrics\n";
    std::fs::write(&lock, both).unwrap();
    assert_eq!(found(&common), "http://127.0.0.1:8");
    assert!(matches!(
        find(&args(None), &common),
        Ok(ServerPlace::Metrics(_))
    ));

    let file = folder.path().join("t.toml");
    let text = format!("data = {:?}\nmetrics = '127.0.0.1:7'\n", folder.path());
    std::fs::write(&file, text).unwrap();
    let configured = TopArgs {
        config: Some(file),
        ..args(None)
    };
    let of_file = find(&configured, &Common::for_tests()).unwrap();
    assert_eq!(
        of_file.to_string(),
        "http://127.0.0.1:8",
        "where it really is"
    );
    std::fs::remove_file(lock).unwrap();
    let of_file = find(&configured, &Common::for_tests()).unwrap();
    assert_eq!(of_file.to_string(), "http://127.0.0.1:7");

    let server = Common {
        server: Some("http://h:1".into()),
        ..Common::for_tests()
    };
    assert_eq!(
        find(&args(None), &server).unwrap(),
        ServerPlace::Services("http://h:1".into())
    );
    let typed = find(&args(Some("h:2")), &common).unwrap();
    assert_eq!(typed.to_string(), "http://h:2");
}
