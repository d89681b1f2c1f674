package data_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestDetached starts a command without a waiting caller, and finds it again.
func TestDetached(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) {
		t.Helper()
		dir := t.TempDir()
		var started wire.Started
		r.do(client, http.MethodPost, id, "/run", asJSON(t, wire.Run{
			Command: `echo one; echo two >&2; while ! test -e "$D/go"; do sleep 0.02; done; echo three; exit 4`, Detach: true, Env: map[string]string{"D": dir},
		})).want(t, http.StatusAccepted, &started)
		r.idle()
		var list wire.Page[wire.Command]
		r.do(client, http.MethodGet, id, "/commands", nil).want(t, http.StatusOK, &list)
		if !slices.ContainsFunc(list.Items, func(c wire.Command) bool { return c.ID == started.ID && c.Running && c.PID == started.PID }) {
			t.Errorf("%s is not in %+v", started.ID, list.Items)
		}
		s := r.stream(client, r.request(t.Context(), http.MethodGet, id, "/commands/"+started.ID+"/output", nil))
		got := map[string]string{}
		var last event
		for len(got["stdout"]) < 4 || len(got["stderr"]) < 4 {
			e, ok := s.next()
			if !ok {
				t.Fatalf("the stream ends with %v: %v", got, s.lines.Err())
			}
			got[e.name] += text(t, e)
			last = e
		}
		if last.id != "4-4" {
			t.Errorf("the last event is %q", last.id)
		}
		_ = s.res.Body.Close()
		if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		// A client that reconnects continues behind what it has.
		req := r.request(t.Context(), http.MethodGet, id, "/commands/"+started.ID+"/output?stdout=1&stderr=1", nil)
		req.Header.Set("Last-Event-Id", last.id)
		s = r.stream(client, req)
		var out wire.Output
		if e := s.must("stdout", &out); string(out.Data) != "three\n" || e.id != "10-4" {
			t.Errorf("%q with %q", out.Data, e.id)
		}
		var exit wire.Exit
		if s.must("exit", &exit); exit.ExitCode != 4 || exit.ID != started.ID {
			t.Errorf("%+v", exit)
		}
		var info wire.Command
		r.do(client, http.MethodGet, id, "/commands/"+started.ID, nil).want(t, http.StatusOK, &info)
		if info.Running || info.ExitCode != 4 || info.Stdout.Size != 10 || info.Stderr.Size != 4 || !slices.Equal(info.Args[:2], []string{"/bin/sh", "-c"}) {
			t.Errorf("%+v", info)
		}
		r.do(client, http.MethodPost, id, "/commands/"+started.ID+"/signal", asJSON(t, wire.Signal{Signal: 9})).wantProblem(t, sandpit.Gone)
		r.do(client, http.MethodDelete, id, "/commands/"+started.ID, nil).want(t, http.StatusNoContent, nil)
		r.do(client, http.MethodGet, id, "/commands/"+started.ID, nil).wantProblem(t, sandpit.NotFound)
	})
	r.idle()
}

// text is what an event of output holds.
func text(t *testing.T, e event) string {
	t.Helper()
	var out wire.Output
	if err := jsonInto(e.data, &out); err != nil {
		t.Fatalf("%v: %s", err, e.data)
	}
	return string(out.Data)
}

// TestRunCanBeHadAgain finds the output of a command that was waited for.
func TestRunCanBeHadAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	var answer wire.RunResult
	r.do(r.client, http.MethodPost, id, "/run", strings.NewReader(`{"command":"echo once"}`)).want(t, http.StatusOK, &answer)
	s := r.stream(r.client, r.request(t.Context(), http.MethodGet, id, "/commands/"+answer.ID+"/output?stdout=2&follow=false", nil))
	var out wire.Output
	if s.must("stdout", &out); string(out.Data) != "ce\n" {
		t.Errorf("%q", out.Data)
	}
	s.must("exit", &wire.Exit{})
}

func TestCommandErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	var started wire.Started
	r.do(r.client, http.MethodPost, id, "/run", strings.NewReader(`{"command":"sleep 1000","detach":true}`)).want(t, http.StatusAccepted, &started)
	here := "/commands/" + started.ID
	for _, tc := range []struct {
		method, target, body string
		want                 sandpit.Code
	}{
		{"GET", "/commands/none", "", sandpit.NotFound},
		{"GET", "/commands/%2e%2e%2fx", "", sandpit.NotFound},
		{"GET", "/commands?limit=1", "", sandpit.Invalid},
		{"GET", "/commands/none/output", "", sandpit.NotFound},
		{"GET", here + "/output?stdout=-1", "", sandpit.Invalid},
		{"GET", here + "/output?stdout=99", "", sandpit.Invalid},
		{"GET", here + "/output?stderr=x", "", sandpit.Invalid},
		{"GET", here + "/output?follow=maybe", "", sandpit.Invalid},
		{"POST", here + "/signal", `{"signal":1}`, sandpit.Invalid},
		{"POST", here + "/signal", `{}`, sandpit.Invalid},
		{"POST", "/commands/none/signal", `{"signal":9}`, sandpit.NotFound},
		{"DELETE", here, "", sandpit.Conflict},
		{"DELETE", "/commands/none", "", sandpit.NotFound},
		{"POST", "/run", `{"command":"cat","stdin":"x","detach":true}`, sandpit.Invalid},
		{"POST", "/run", `{"args":["no-such-program"],"detach":true}`, sandpit.NotFound},
	} {
		t.Run(tc.method+tc.target, func(t *testing.T) {
			r.do(r.client, tc.method, id, tc.target, strings.NewReader(tc.body)).wantProblem(t, tc.want)
		})
	}
	r.do(r.client, http.MethodPost, id, here+"/signal", strings.NewReader(`{"signal":15}`)).want(t, http.StatusNoContent, nil)
	eventually(t, "the command has ended", func() bool {
		var info wire.Command
		r.do(r.client, http.MethodGet, id, here, nil).want(t, http.StatusOK, &info)
		return !info.Running && info.ExitCode == 143
	})
	r.idle()
}

func TestSessions(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) {
		t.Helper()
		dir := t.TempDir()
		var session wire.Session
		r.do(client, http.MethodPost, id, "/sessions", asJSON(t, wire.NewSession{Name: "mine", Dir: dir, Env: map[string]string{"A": "1"}})).want(t, http.StatusCreated, &session)
		if session.ID != "mine" || session.Cwd != dir {
			t.Errorf("%+v", session)
		}
		r.do(client, http.MethodPost, id, "/sessions", strings.NewReader(`{"name":"mine"}`)).wantProblem(t, sandpit.AlreadyExists)
		var list wire.Page[wire.Session]
		r.do(client, http.MethodGet, id, "/sessions", nil).want(t, http.StatusOK, &list)
		if len(list.Items) != 1 {
			t.Errorf("%+v", list)
		}
		run := func(req wire.SessionRun) (result wire.SessionResult) {
			t.Helper()
			r.do(client, http.MethodPost, id, "/sessions/mine/run", asJSON(t, req)).want(t, http.StatusOK, &result)
			result.Duration, result.StdoutSize, result.StderrSize = 0, 0, 0
			return result
		}
		if diff := cmp.Diff(wire.SessionResult{Outcome: "completed", Cwd: dir + "/sub"}, run(wire.SessionRun{Command: "mkdir sub; cd sub; B=2; export A"})); diff != "" {
			t.Error(diff)
		}
		want := wire.SessionResult{Stdout: "1 2\n", Stderr: "err\n", ExitCode: 5, Outcome: "completed", Cwd: dir + "/sub"}
		if diff := cmp.Diff(want, run(wire.SessionRun{Command: `echo $A $B; echo err >&2; (exit 5)`, SeparateStderr: true})); diff != "" {
			t.Error(diff)
		}
		late := run(wire.SessionRun{Command: "sleep 1000", Timeout: 0.3})
		if !late.TimedOut || late.Outcome == "completed" {
			t.Errorf("%+v", late)
		}

		var job wire.Job
		r.do(client, http.MethodPost, id, "/sessions/mine/jobs", asJSON(t, wire.NewJob{Command: `pwd; read x; echo "got $x"; cat; exit 6`, Stdin: true})).want(t, http.StatusCreated, &job)
		here := "/sessions/mine/jobs/" + job.ID
		var jobs wire.Page[wire.Job]
		r.do(client, http.MethodGet, id, "/sessions/mine/jobs", nil).want(t, http.StatusOK, &jobs)
		if len(jobs.Items) != 1 || jobs.Items[0].ID != job.ID || !job.Running {
			t.Errorf("%+v, %+v", job, jobs)
		}
		s := r.stream(client, r.request(t.Context(), http.MethodGet, id, here+"/output", nil))
		var chunk wire.Chunk
		if s.must("output", &chunk); string(chunk.Data) != dir+"/sub\n" {
			t.Errorf("%q", chunk.Data)
		}
		r.do(client, http.MethodPost, id, here+"/stdin", strings.NewReader(`{"text":"it\n"}`)).want(t, http.StatusNoContent, nil)
		if s.must("output", &chunk); string(chunk.Data) != "got it\n" {
			t.Errorf("%q", chunk.Data)
		}
		r.do(client, http.MethodPost, id, here+"/stdin", strings.NewReader(`{"data":"AP8=","end":true}`)).want(t, http.StatusNoContent, nil)
		if s.must("output", &chunk); string(chunk.Data) != "\x00\xff" {
			t.Errorf("%q", chunk.Data)
		}
		if s.must("exit", &job); job.Running || job.ExitCode != 6 {
			t.Errorf("%+v", job)
		}
		r.do(client, http.MethodGet, id, fmt.Sprintf("%s/output?offset=%d", here, job.Output-2), nil).want(t, http.StatusOK, &chunk)
		if string(chunk.Data) != "\x00\xff" || !chunk.Ended {
			t.Errorf("%+v", chunk)
		}
		r.do(client, http.MethodPost, id, here+"/stdin", strings.NewReader(`{"text":"x"}`)).wantProblem(t, sandpit.Gone)

		r.do(client, http.MethodPost, id, "/sessions/mine/jobs", strings.NewReader(`{"command":"sleep 1000"}`)).want(t, http.StatusCreated, &job)
		r.do(client, http.MethodPost, id, "/sessions/mine/jobs/"+job.ID+"/signal", strings.NewReader(`{"signal":15}`)).want(t, http.StatusNoContent, nil)
		eventually(t, "the job has ended", func() bool {
			r.do(client, http.MethodGet, id, "/sessions/mine/jobs/"+job.ID, nil).want(t, http.StatusOK, &job)
			return !job.Running && job.ExitCode == 143
		})

		r.do(client, http.MethodDelete, id, "/sessions/mine", nil).want(t, http.StatusNoContent, nil)
		r.do(client, http.MethodPost, id, "/sessions/mine/run", strings.NewReader(`{"command":"true"}`)).wantProblem(t, sandpit.Gone)
	})
	r.idle()
}

func TestSessionErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.do(r.client, http.MethodGet, id, "/sessions/early", nil).wantProblem(t, sandpit.NotFound)
	r.do(r.client, http.MethodDelete, id, "/sessions/early", nil).wantProblem(t, sandpit.NotFound)
	r.do(r.client, http.MethodPost, id, "/sessions", strings.NewReader(`{"name":"s"}`)).want(t, http.StatusCreated, nil)
	for _, tc := range []struct {
		method, target, body string
		want                 sandpit.Code
	}{
		{"POST", "/sessions", `{"name":"../x"}`, sandpit.Invalid},
		{"POST", "/sessions", `{"dir":"relative"}`, sandpit.Invalid},
		{"POST", "/sessions", `{"timeout_seconds":-1}`, sandpit.Invalid},
		{"POST", "/sessions", `{"max_output":99999999999}`, sandpit.Invalid},
		{"POST", "/sessions", `{"user":"no-such-user"}`, sandpit.Invalid},
		{"POST", "/sessions", `{"naem":"x"}`, sandpit.Invalid},
		{"GET", "/sessions/none", "", sandpit.NotFound},
		{"POST", "/sessions/none/run", `{"command":"true"}`, sandpit.NotFound},
		{"POST", "/sessions/s/run", `{"command":"echo 'a"}`, sandpit.Invalid},
		{"POST", "/sessions/s/run", `{"command":"a\u0000"}`, sandpit.Invalid},
		{"POST", "/sessions/s/run", `{"command":"true","max_output":16777217}`, sandpit.Invalid},
		{"POST", "/sessions/s/jobs", `{}`, sandpit.Invalid},
		{"POST", "/sessions/s/jobs", `{"terminal":{"cols":0,"rows":1}}`, sandpit.Invalid},
		{"POST", "/sessions/s/jobs", `{"terminal":{"cols":70000,"rows":1}}`, sandpit.Invalid},
		{"GET", "/sessions/s/jobs/job-9", "", sandpit.NotFound},
		{"GET", "/sessions/s/jobs/job-9/output", "", sandpit.NotFound},
		{"GET", "/sessions/s/jobs/job-9/output?offset=-1", "", sandpit.NotFound},
		{"POST", "/sessions/s/jobs/job-9/stdin", `{"text":"x"}`, sandpit.NotFound},
		{"POST", "/sessions/s/jobs/job-9/stdin", `{"text":"x","data":"eA=="}`, sandpit.Invalid},
		{"POST", "/sessions/s/jobs/job-9/signal", `{"signal":9}`, sandpit.NotFound},
		{"GET", "/sessions/s/attach", "", sandpit.Invalid},
		{"GET", "/terminal?cols=0", "", sandpit.Invalid},
		{"GET", "/terminal", "", sandpit.Invalid},
	} {
		t.Run(tc.method+tc.target+tc.body, func(t *testing.T) {
			r.do(r.client, tc.method, id, tc.target, strings.NewReader(tc.body)).wantProblem(t, tc.want)
		})
	}
	r.idle()
}

// TestOthersSandboxes makes every call as another owner, and without an owner.
func TestOthersSandboxes(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	names := strings.NewReplacer("{id}", string(id), "{path...}", "health", "{cid}", "c", "{sid}", "s", "{jid}", "j")
	for _, pattern := range r.server.Patterns() {
		method, path, _ := strings.Cut(names.Replace(pattern), " ")
		for owner, want := range map[string]sandpit.Code{bob: sandpit.NotFound, "": sandpit.Unauthenticated} {
			var body io.Reader = strings.NewReader(`{}`)
			req, err := http.NewRequestWithContext(t.Context(), method, r.url+path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(ownerHeader, owner)
			p := r.send(r.client, req).wantProblem(t, want)
			if want == sandpit.NotFound && !strings.Contains(p.Detail, "Sandbox "+string(id)+" not found") {
				t.Errorf("%s as %q: %s", pattern, owner, p.Detail)
			}
		}
	}
	for _, wrong := range []sandpit.ID{"x", "sssssssssssssssssss1", "..%2f..%2fetc", "%00"} {
		if got := r.do(r.client, http.MethodGet, wrong, "/files?path=/etc/passwd", nil); got.status != http.StatusNotFound {
			t.Errorf("sandbox %q: %+v", wrong, got)
		}
	}
}
