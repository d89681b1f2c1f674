package shell_test

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// TestInGVisor goes through a session's life in a real sandbox.
func TestInGVisor(t *testing.T) {
	t.Parallel()
	box := testgvisor.Box(t)
	set := shell.NewSessions(box.Guest(), shell.SetOptions{})
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for _, name := range []string{"bash", "sh"} {
		o := shell.Options{Dir: "/tmp/made/for it", Timeout: patience, Grace: patience, Shell: name}
		s, err := set.Create(t.Context(), name, o)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, s, "pwd", "/tmp/made/for it\n")
		run(t, s, "x=kept; cd /tmp; f() { echo f; }; sleep 1000 & bg=$!")
		expect(t, s, `echo "$x"; pwd; f`, "kept\n/tmp\nf\n")
		long := strings.Repeat("'ä", 50_000)
		expect(t, s, "cat <<\\E\n"+long+"\nE", long+"\n")
		r, err := s.Run(t.Context(), shell.RunRequest{Command: "wc -c", Stdin: []byte(long)})
		if err != nil || strings.TrimSpace(string(r.Stdout)) != "150000" {
			t.Errorf("%s: input: %q, %v", name, r.Stdout, err)
		}
		expect(t, s, "ls -A /tmp | grep sandpit", "")
		_, err = s.Run(t.Context(), shell.RunRequest{Command: "echo 'unbalanced"})
		wantCode(t, err, sandpit.Invalid)
		for _, command := range []string{"echo before; sleep 1000; echo after", "echo before; while :; do :; done", "echo before; timeout 1000 sleep 1000; echo after"} {
			r, err := s.Run(t.Context(), shell.RunRequest{Command: command, Timeout: short})
			if sandpit.CodeOf(err) != sandpit.Timeout || r.Outcome != shell.Interrupted || string(r.Stdout) != "before\n" || r.ExitCode != 130 {
				t.Errorf("%s: %s: %q, %+v, %v", name, command, r.Stdout, r, err)
			}
			expect(t, s, `echo $x; kill -0 $bg && echo bg`, "kept\nbg\n")
		}
		if r := run(t, s, "echo bye; exit 3"); r.ExitCode != 3 || r.Outcome != shell.Ended || string(r.Stdout) != "bye\n" {
			t.Errorf("%s: %+v", name, r)
		}
		expect(t, s, "echo \"new $x\"", "new \n")
		testJobs(t, s)
		testTerminal(t, s)
	}
	stubborn, err := set.Create(t.Context(), "stubborn", shell.Options{Timeout: patience, Grace: 100e6})
	if err != nil {
		t.Fatal(err)
	}
	run(t, stubborn, "x=kept; sleep 1000 & bg=$!; sleep 0.1")
	r, err := stubborn.Run(t.Context(), shell.RunRequest{Command: `sh -c 'trap "" INT; while :; do sleep 0.1; done'`, Timeout: short})
	if sandpit.CodeOf(err) != sandpit.Timeout || r.Outcome != shell.Killed {
		t.Errorf("%+v, %v", r, err)
	}
	expect(t, stubborn, `echo $x; kill -0 $bg && echo bg`, "kept\nbg\n")
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = stubborn.Run(t.Context(), shell.RunRequest{Command: "true"})
	wantCode(t, err, sandpit.Gone)
	eventually(t, "the sessions close", func() bool { return len(set.List()) == 0 })
}

// BenchmarkRun measures a command in a shell of a real sandbox.
func BenchmarkRun(b *testing.B) {
	s, err := shell.Open(b.Context(), testgvisor.Box(b).Guest(), shell.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, command := range map[string]string{"builtin": "echo hello", "program": "/bin/true", "4KB": "echo " + strings.Repeat("x", 4000), "8KB": "echo " + strings.Repeat("x", 8000)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if r, err := s.Run(b.Context(), shell.RunRequest{Command: command}); err != nil || r.ExitCode != 0 {
					b.Fatal(r, err)
				}
			}
		})
	}
	if err := s.Close(); err != nil {
		b.Error(err)
	}
}
