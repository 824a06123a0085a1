//! Tests the drawings of timelines as text, SVG and trace.

use stagecoach_pipeline::{
    Costs, Placement, Timeline, forward_only_programs, gpipe, lower, one_f_one_b, simulate, timeline_svg,
    timeline_text, timeline_trace,
};

fn example() -> Timeline {
    let costs = Costs { link_seconds: 0.25, exchange_seconds: 0.5, update_seconds: 1.0, ..Costs::uniform(2) };
    simulate(&lower(&one_f_one_b(2, 12), true).unwrap(), &costs)
}

#[test]
fn wide_text_names_every_action() {
    let timeline = simulate(&lower(&gpipe(2, 2), false).unwrap(), &Costs::uniform(2));
    let expected = "\
stage 0 |F0--F1--........B0--B1--| bubble 33.3%
stage 1 |....F0--F1--B0--B1--....| bubble 33.3%
         0                    6 s
";
    assert_eq!(timeline_text(&[(&timeline).into()], 48), expected);
    let v = simulate(&forward_only_programs(&Placement::v_shaped(2), 1), &Costs::uniform(4));
    let text = timeline_text(&[(&v).into()], 48);
    assert!(text.contains("|0F0---............3F0---|") && text.contains("|......1F0---2F0---......|"), "{text}");
}

#[test]
fn narrow_text_shows_microbatch_digits_with_a_legend() {
    let timeline =
        simulate(&lower(&one_f_one_b(2, 12), true).unwrap(), &Costs { update_seconds: 2.0, ..Costs::uniform(2) });
    let expected = "\
stage 0 |01.a2b3c4d5e6f7g8h9i0j1a.bUU| bubble 7.1%
stage 1 |.0a1b2c3d4e5f6g7h8i9j0a1b.UU| bubble 7.1%
         0                       28 s
         0-9 forward, a-j backward, A-J weight gradients: the last digit of the microbatch
";
    assert_eq!(timeline_text(&[(&timeline).into()], 52), expected);
}

#[test]
fn degenerate_timelines_are_drawn() {
    let free = Costs { chunks: Vec::new(), ..Costs::uniform(0) };
    let instant = simulate(&lower(&gpipe(2, 2), false).unwrap(), &free);
    for timeline in [instant, Timeline::new(Vec::new(), Vec::new()), Timeline::new(vec![Vec::new()], vec![0])] {
        for width in [0, 5, 200] {
            assert!(timeline_text(&[(&timeline).into()], width).ends_with('\n'));
        }
        assert!(timeline_svg(&[(&timeline).into()], "").ends_with("</svg>\n"));
        serde_json::from_str::<serde_json::Value>(&timeline_trace(&[(&timeline).into()])).unwrap();
    }
}

#[test]
fn the_svg_shows_every_action_bubble_and_kind() {
    let timeline = example();
    let svg = timeline_svg(&[(&timeline).into()], "1F1B <2 & \"12\">");
    assert_eq!(svg.matches("1F1B &lt;2 &amp; &quot;12&quot;&gt;").count(), 2);
    assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    for span in timeline.spans.iter().flatten() {
        let drawn = !span.action.is_recv() && span.end > span.start;
        assert_eq!(svg.contains(&format!("<title>{}: ", span.action)), drawn, "{}", span.action);
    }
    for label in ["forward", "backward", "activations under way", "tied embedding", "exchange", "update", "stage 1"] {
        assert!(svg.contains(&format!(">{label}</text>")), "{label}");
    }
    assert!(!svg.contains(">snapshot</text>") && !svg.contains(">backward, weights</text>"));
    for bubble in &timeline.bubble {
        assert!(svg.contains(&format!("{:.1}%", bubble * 100.0)));
    }
    for microbatch in 0..12 {
        assert_eq!(svg.matches(&format!(">{microbatch}</text>")).count(), if microbatch == 0 { 5 } else { 4 });
    }
}

#[test]
fn the_trace_holds_every_span() {
    let timeline = example();
    let trace: serde_json::Value = serde_json::from_str(&timeline_trace(&[(&timeline).into()])).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(spans.len(), timeline.spans.iter().map(Vec::len).sum::<usize>());
    let first = spans.iter().find(|event| event["name"] == "1F0").unwrap();
    assert_eq!((first["ts"].as_f64(), first["dur"].as_f64()), (Some(1.25e6), Some(1e6)));
    assert_eq!((first["pid"].as_u64(), first["tid"].as_u64()), (Some(1), Some(0)));
    for name in ["stage 0", "compute", "SEND_F of chunk 0", "RECV_B of chunk 0", "SEND_B of chunk 1"] {
        assert!(events.iter().any(|event| event["args"]["name"] == name), "{name}");
    }
}
