package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret is a key that must not appear anywhere.
const secret = "e2b_0123456789abcdef0123456789abcdef01234567"

// long is how long a test waits for what must come.
const long = 60 * time.Second

// against returns a client of a server that answers as h does.
func against(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return newClient(t, client.Options{URL: s.URL, Key: secret})
}

func newClient(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func problem(w http.ResponseWriter, status int, p wire.Problem) {
	w.Header().Set("Content-Type", wire.ContentTypeProblem)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p)
}

// wantError checks an error's code and text, and that the key is not in it.
func wantError(t *testing.T, err error, code sandpit.Code, part string) {
	t.Helper()
	if err == nil || sandpit.CodeOf(err) != code || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v (%s), want %s and %q in it", err, sandpit.CodeOf(err), code, part)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", err, err, err, sandpit.HintOf(err)); strings.Contains(text, secret) {
		t.Errorf("the key is in the error: %s", text)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusConflict, wire.Problem{
			Title: "Conflict", Status: 409, Detail: "it is stopped", Code: sandpit.Conflict, Hint: "start it",
			Errors: []wire.Fault{{Message: "too many", Location: "body.spec"}, {Message: "no place"}},
		})
	})
	err := c.Sandboxes.Stop(t.Context(), sandpit.NewID())
	wantError(t, err, sandpit.Conflict, "it is stopped: body.spec: too many; no place")
	if !errors.Is(err, sandpit.Conflict) || sandpit.HintOf(err) != "start it" {
		t.Errorf("%v with hint %q", err, sandpit.HintOf(err))
	}
}

// TestStrangeAnswers has a server say what none should.
func TestStrangeAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		code   sandpit.Code
		part   string
	}{
		"no JSON": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello") },
			sandpit.Internal, "not a sandpit server",
		},
		"wrong types": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":7,"state":[]}`) },
			sandpit.Internal, "not a sandpit server",
		},
		"a list": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `[]`) },
			sandpit.Internal, "not a sandpit server",
		},
		"half": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":"s`) },
			sandpit.Internal, "not a sandpit server",
		},
		"nothing": {func(http.ResponseWriter, *http.Request) {}, sandpit.Internal, "not a sandpit server"},
		"deep": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(`{"spec":`, 200_000))
		}, sandpit.Internal, "not a sandpit server"},
		"huge": {func(w http.ResponseWriter, _ *http.Request) {
			spaces := bytes.Repeat([]byte(" "), 1<<20)
			for range 66 {
				if _, err := w.Write(spaces); err != nil {
					return
				}
			}
		}, sandpit.Exhausted, "more than 67108864 bytes"},
		"an error of another server": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
			sandpit.Internal, "unexpected response (HTTP 418): not a sandpit server",
		},
		"a malformed problem": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", wire.ContentTypeProblem)
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"code":`)
		}, sandpit.Internal, "unexpected response (HTTP 400): not a sandpit server"},
		"a problem without a code": {func(w http.ResponseWriter, _ *http.Request) {
			problem(w, http.StatusBadRequest, wire.Problem{Title: "Bad"})
		}, sandpit.Internal, "unexpected response (HTTP 400): not a sandpit server"},
		"a long problem": {func(w http.ResponseWriter, _ *http.Request) {
			problem(w, http.StatusNotFound, wire.Problem{Code: sandpit.NotFound, Detail: strings.Repeat("x", 500_000)})
		}, sandpit.NotFound, "xxx..."},
		"a problem without an end": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", wire.ContentTypeProblem)
			w.WriteHeader(http.StatusBadRequest)
			for {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
					return
				}
			}
		}, sandpit.Internal, "unexpected response (HTTP 400): not a sandpit server"},
		"long headers": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		}, sandpit.Unavailable, "cannot be reached"},
		"compressed": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "" {
				t.Error("the client asks for compressed answers")
			}
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("\x1f\x8b\x08\x00"))
		}, sandpit.Internal, "not a sandpit server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(tc.answer)
			defer s.Close()
			c := newClient(t, client.Options{URL: s.URL, Key: secret, Attempts: 1})
			_, err := c.Sandboxes.Get(t.Context(), sandpit.NewID())
			wantError(t, err, tc.code, tc.part)
			if err != nil && len(err.Error()) > 8<<10 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestRedirect has a server send its clients elsewhere, with their key.
func TestRedirect(t *testing.T) {
	t.Parallel()
	var visits atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visits.Add(1) }))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		c := against(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL+r.URL.Path, status) })
		_, err := c.Sandboxes.Get(t.Context(), sandpit.NewID())
		wantError(t, err, sandpit.Internal, fmt.Sprintf("unexpected response (HTTP %d): not a sandpit server", status))
		_, err = c.Sandboxes.Create(t.Context(), client.CreateRequest{})
		wantError(t, err, sandpit.Internal, "not a sandpit server")
		if _, err := c.Sandboxes.Open(sandpit.NewID()).Guest().Stat(t.Context(), "", "/etc"); err == nil {
			t.Errorf("%d: a file was found at the end of a redirect", status)
		}
		err = c.Events.Follow(t.Context(), client.EventFilter{}, func(api.Event) error { return nil })
		wantError(t, err, sandpit.Internal, "not a sandpit server")
	}
	if n := visits.Load(); n != 0 {
		t.Errorf("the client followed %d times", n)
	}
}

// TestListWithoutEnd has a server page for ever.
func TestListWithoutEnd(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	full := "[" + strings.Repeat("{},", 99_999) + "{}]"
	for name, text := range map[string]string{"full": full, "empty": "[]"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := against(t, func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"items":%s,"next_cursor":"c%d"}`, text, n.Add(1))
			})
			_, err := c.Queue.List(t.Context(), false)
			wantError(t, err, sandpit.Exhausted, "does not end")
		})
	}
	t.Run("the same again", func(t *testing.T) {
		t.Parallel()
		c := against(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items":[],"next_cursor":"same"}`)
		})
		if _, err := c.Queue.List(t.Context(), false); err != nil {
			t.Error(err)
		}
	})
	t.Run("more than asked for", func(t *testing.T) {
		t.Parallel()
		c := against(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items":[{},{},{},{}],"next_cursor":"x"}`)
		})
		list, err := c.Sandboxes.List(t.Context(), client.Filter{Limit: 3})
		if err != nil || len(list) != 3 {
			t.Errorf("%d and %v, want 3", len(list), err)
		}
	})
}

// event writes one event as a stream has it.
func event(w http.ResponseWriter, e api.Event) {
	text, _ := json.Marshal(e)
	fmt.Fprintf(w, "id: %d\nevent: event\ndata: %s\n\n", e.Seq, text)
	_ = http.NewResponseController(w).Flush()
}

// TestEventsGoOn has connections break in the middle of an event, and servers end
// their streams; every event comes once.
func TestEventsGoOn(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		var after int64
		_, _ = fmt.Sscan(r.Header.Get("Last-Event-Id"), &after)
		if got := r.URL.Query().Get("after"); got != strconv.FormatInt(after, 10) {
			t.Errorf("after %s, want %d", got, after)
		}
		if r.URL.Query().Get("action") != "create" || r.Header.Get(wire.HeaderKey) != secret {
			t.Errorf("the request is %s %v", r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		switch calls.Add(1) % 5 {
		case 1:
			_, _ = io.WriteString(w, ": nothing yet\n\n")
			event(w, api.Event{Seq: after + 1})
			fmt.Fprintf(w, "event: event\ndata: {\"seq\":%d", after+2)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 2:
			event(w, api.Event{Seq: after + 1})
			fmt.Fprintf(w, "event: error\ndata: {\"code\":\"unavailable\",\"detail\":\"the server ends\"}\n\n")
		case 3:
			problem(w, http.StatusServiceUnavailable, wire.Problem{Code: sandpit.Unavailable, Detail: "not yet"})
		case 4:
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusBadGateway)
		default:
			event(w, api.Event{Seq: after + 1}) // and the end
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	enough := errors.New("enough")
	var got []int64
	err := c.Events.Follow(ctx, client.EventFilter{Action: "create", After: 7}, func(e api.Event) error {
		if got = append(got, e.Seq); len(got) == 7 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	for i, seq := range got {
		if seq != int64(8+i) {
			t.Fatalf("events %v, want 8 to 14", got)
		}
	}
}

func TestEventsOfHostileServers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		write func(w io.Writer) error
		code  sandpit.Code
		part  string
	}{
		"an event without an end": {func(w io.Writer) error {
			_, err := io.WriteString(w, "data: ")
			for chunk := bytes.Repeat([]byte("x"), 64<<10); err == nil; {
				_, err = w.Write(chunk)
			}
			return err
		}, sandpit.Exhausted, "event"},
		"an event of endless lines": {func(w io.Writer) error {
			var err error
			for chunk := bytes.Repeat([]byte("data: x\n"), 8<<10); err == nil; {
				_, err = w.Write(chunk)
			}
			return err
		}, sandpit.Exhausted, "event"},
		"no JSON": {func(w io.Writer) error {
			_, err := io.WriteString(w, "event: event\ndata: {\n\n")
			return err
		}, sandpit.Internal, "decode an event"},
		"a malformed problem": {func(w io.Writer) error {
			_, err := io.WriteString(w, "event: error\ndata: {\n\n")
			return err
		}, sandpit.Internal, "not a sandpit server"},
		"a refusal": {func(w io.Writer) error {
			_, err := io.WriteString(w, "event: error\ndata: {\"code\":\"permission_denied\",\"detail\":\"no\"}\n\n")
			return err
		}, sandpit.PermissionDenied, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := against(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_ = tc.write(w)
			})
			ctx, cancel := context.WithTimeout(t.Context(), long)
			defer cancel()
			err := c.Events.Follow(ctx, client.EventFilter{}, func(api.Event) error { return nil })
			wantError(t, err, tc.code, tc.part)
		})
	}
}

// TestEventsEnd shows that a stream that says nothing ends with its context.
func TestEventsEnd(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 1)
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	go func() {
		<-began
		cancel(why)
	}()
	if err := c.Events.Follow(ctx, client.EventFilter{}, func(api.Event) error { return nil }); !errors.Is(err, why) {
		t.Errorf("it ended with %v", err)
	}
}

// TestUnreachable calls an address where no server listens.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	url := "http://" + testport.Reserve(t)
	c := newClient(t, client.Options{URL: url, Key: secret})
	_, err := c.Sandboxes.Get(t.Context(), sandpit.NewID())
	wantError(t, err, sandpit.Unavailable, "the server at "+url+" cannot be reached")
	if hint := sandpit.HintOf(err); !strings.Contains(hint, "sandpit serve") || !strings.Contains(hint, url) {
		t.Errorf("hint %q", hint)
	}
	_, err = c.Sandboxes.Open(sandpit.NewID()).Guest().ListProcesses(t.Context())
	wantError(t, err, sandpit.Unavailable, "")

	c = newClient(t, client.Options{URL: "unix://" + t.TempDir() + "/none.sock", Key: secret})
	wantError(t, c.Ready(t.Context()), sandpit.Unavailable, "none.sock")
}

// TestTimeout has a server that says nothing.
func TestTimeout(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer s.Close()
	c := newClient(t, client.Options{URL: s.URL, Key: secret, Timeout: 100 * time.Millisecond})
	_, err := c.Sandboxes.Get(t.Context(), sandpit.NewID())
	wantError(t, err, sandpit.Timeout, "")
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"ftp://host", "host:80", "http://", "unix://", "unix://relative", "http://user:hunter2@host", "://", "http://[::1", "http://host\x00",
	} {
		_, err := client.New(client.Options{URL: url, Key: secret})
		wantError(t, err, sandpit.Invalid, "")
		if err != nil && strings.Contains(err.Error()+sandpit.HintOf(err), "hunter2") {
			t.Errorf("%q: the password is in the error: %v", url, err)
		}
	}
	_, err := client.New(client.Options{Key: "with\r\nX-Other: header"})
	wantError(t, err, sandpit.Invalid, "key")
	if err != nil && strings.Contains(err.Error(), "X-Other") {
		t.Errorf("the key is in the error: %v", err)
	}
	for want, env := range map[string]map[string]string{
		client.DefaultURL:    {},
		"https://a.example":  {"SANDPIT_URL": "https://a.example", "SANDBOX_HOST": "b"},
		"http://b:8090":      {"SANDBOX_HOST": "b"},
		"http://localhost:7": {"SANDBOX_PORT": "7"},
		"http://[::1]:7":     {"SANDBOX_HOST": "::1", "SANDBOX_PORT": "7"},
	} {
		c := newClient(t, client.OptionsFromEnv(func(name string) string { return env[name] }))
		if c.URL() != want {
			t.Errorf("%v: %s, want %s", env, c.URL(), want)
		}
	}
}

// TestPathsOfIDs shows that an ID cannot lead anywhere else.
func TestPathsOfIDs(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var paths []string
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.EscapedPath())
		_, _ = io.WriteString(w, "{}")
	})
	for _, id := range []sandpit.ID{"../keys", "a/b", "a?b=c", "a#b", "a%2fb", "\x00", "ä"} {
		if err := c.Sandboxes.Delete(t.Context(), id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if _, err := c.Sandboxes.Open(id).Guest().Stat(t.Context(), "", "/x"); err == nil {
			t.Errorf("%q: a file was found", id)
		}
	}
	for _, p := range paths {
		rest, ok := strings.CutPrefix(p, "/v1/sandboxes/")
		id, after, _ := strings.Cut(rest, "/")
		if !ok || id == ".." || strings.Contains(after, "..") || after != "" && !strings.HasPrefix(after, "envd/") {
			t.Errorf("a request went to %s", p)
		}
	}
}

// TestHostileGuests has the way into a sandbox answer strangely.
func TestHostileGuests(t *testing.T) {
	t.Parallel()
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Access-Token") != "" {
			t.Error("a token of the guest is shown to the server")
		}
		switch {
		case strings.Contains(r.URL.Path, "sgone"):
			problem(w, http.StatusGone, wire.Problem{Code: sandpit.Gone, Detail: "it was idle for an hour"})
		case strings.Contains(r.URL.Path, "sproxy"):
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<h1>Bad gateway</h1>")
		default:
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write(bytes.Repeat([]byte{0xff}, 1<<20))
		}
	})
	_, err := c.Sandboxes.Open("sgone").Guest().Stat(t.Context(), "", "/x")
	wantError(t, err, sandpit.Gone, "it was idle for an hour")
	_, err = c.Sandboxes.Open("sgone").Guest().Start(t.Context(), sandpit.Command{Args: []string{"true"}})
	wantError(t, err, sandpit.Gone, "it was idle for an hour")
	_, err = c.Sandboxes.Open("sproxy").Guest().ListProcesses(t.Context())
	wantError(t, err, sandpit.Unavailable, "502")
	if _, err = c.Sandboxes.Open("sjunk").Guest().Stat(t.Context(), "", "/x"); err == nil {
		t.Error("junk is a file")
	}
}
