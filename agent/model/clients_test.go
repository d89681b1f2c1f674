package model_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/anthropic"
	"github.com/sandpit-dev/sandpit/agent/model/openai"
	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/testing/testport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-test-0123456789abcdef"

// quick has retries that do not delay a test.
var quick = model.Calls{RetryDelay: time.Millisecond}

// clients are the clients of each protocol.
var clients = map[string]func(url, key string, calls model.Calls) (model.Model, error){
	"chat": func(url, key string, calls model.Calls) (model.Model, error) {
		return openai.New(openai.Options{Model: "script", BaseURL: url + "/v1/", Key: key, Calls: calls})
	},
	"azure": func(url, key string, calls model.Calls) (model.Model, error) {
		return openai.New(openai.Options{Model: "script", BaseURL: url, Azure: true, APIVersion: "2024-08-01-preview", Key: key, Calls: calls})
	},
	"responses": func(url, key string, calls model.Calls) (model.Model, error) {
		return openai.New(openai.Options{Model: "script", BaseURL: url + "/v1", API: openai.Responses, Key: key, Calls: calls})
	},
	"messages": func(url, key string, calls model.Calls) (model.Model, error) {
		return anthropic.New(anthropic.Options{Model: "script", BaseURL: url, Key: key, Calls: calls})
	},
}

// eachClient runs a test for each protocol, with a model that follows a script behind a server.
func eachClient(t *testing.T, text string, wrap func(http.Handler) http.Handler, test func(t *testing.T, m model.Model, s *script.Model)) {
	t.Helper()
	for name, open := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := parse(t, text)
			var handler http.Handler = script.NewServer(s, script.ServerOptions{Key: testKey})
			if wrap != nil {
				handler = wrap(handler)
			}
			server := httptest.NewServer(handler)
			t.Cleanup(server.Close)
			calls := quick
			calls.Client = server.Client()
			m, err := open(server.URL, testKey, calls)
			if err != nil {
				t.Fatal(err)
			}
			test(t, m, s)
		})
	}
}

func parse(t *testing.T, text string) *script.Model {
	t.Helper()
	s, err := script.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ask(text string) model.Request {
	return model.Request{System: "You are a test.", Messages: []model.Message{{Role: model.RoleUser, Text: text}}}
}

func generate(t *testing.T, m model.Model, r model.Request) (model.Response, []model.Delta) {
	t.Helper()
	var deltas []model.Delta
	res, err := m.Generate(t.Context(), r, func(d model.Delta) { deltas = append(deltas, d) })
	if err != nil {
		t.Fatal(err)
	}
	return res, deltas
}

func TestText(t *testing.T) {
	t.Parallel()
	eachClient(t, `
[[turn]]
expect = { last = "^Hällo 🙂$", system = "^You are a test.$", role = "user" }
text = "Grüße, “Welt” 🙂\nund <mehr>"
usage = { input = 100, cached = 60, output = 7 }
`, nil, func(t *testing.T, m model.Model, _ *script.Model) {
		t.Helper()
		res, deltas := generate(t, m, ask("Hällo 🙂"))
		want := model.Response{
			Message: model.Message{Role: model.RoleAssistant, Text: "Grüße, “Welt” 🙂\nund <mehr>"},
			Stop:    model.StopEnd, Usage: model.Usage{Input: 100, Cached: 60, Output: 7},
		}
		if diff := cmp.Diff(want, res); diff != "" {
			t.Errorf("response (-want +got):\n%s", diff)
		}
		wantDeltas := []model.Delta{{Text: "Grüße, "}, {Text: "“Welt” "}, {Text: "🙂\nund "}, {Text: "<mehr>"}}
		if diff := cmp.Diff(wantDeltas, deltas); diff != "" {
			t.Errorf("deltas (-want +got):\n%s", diff)
		}
	})
}

const callScript = `
[[turn]]
expect = { tools = ["bash", "look"] }
thinking = "They want two things."
text = "I do both."
call = [
  { id = "call_a", name = "bash", arguments = { command = "echo 'ä \"x\"'" } },
  { id = "call_b", name = "look" },
]

[[turn]]
expect = { last = '(?s)äx.*no screen', role = "tool" }
call = [ { name = "look", arguments = { at = "screen" } } ]

[[turn]]
text = "Done."
`

func picture(t *testing.T) model.Image {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 2, 2))); err != nil {
		t.Fatal(err)
	}
	return model.Image{MediaType: "image/png", Data: b.Bytes()}
}

func withTools(r model.Request) model.Request {
	r.Tools = []model.Tool{
		{Name: "bash", Description: "Run a command.", Schema: json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}`)},
		{Name: "look", Description: "Look at the screen.", Schema: json.RawMessage(`{"type":"object","properties":{"at":{"type":"string"}}}`)},
	}
	return r
}

// TestCalls has a conversation with parallel calls, a failed one, images in a result and from the
// user, and reasoning that goes back to the vendor.
func TestCalls(t *testing.T) {
	t.Parallel()
	eachClient(t, callScript, nil, func(t *testing.T, m model.Model, s *script.Model) {
		t.Helper()
		r := withTools(ask("Do it."))
		r.MustCall = true
		res, deltas := generate(t, m, r)
		want := []model.ToolCall{
			{ID: "call_a", Name: "bash", Arguments: `{"command":"echo 'ä \"x\"'"}`},
			{ID: "call_b", Name: "look", Arguments: "{}"},
		}
		if diff := cmp.Diff(want, res.Message.Calls); diff != "" || res.Stop != model.StopTools || res.Message.Text != "I do both." {
			t.Errorf("response %+v, calls (-want +got):\n%s", res, diff)
		}
		wantDeltas := []model.Delta{{Text: "I "}, {Text: "do "}, {Text: "both."}, {CallName: "bash"}, {CallName: "look"}}
		if diff := cmp.Diff(wantDeltas, deltas); diff != "" {
			t.Errorf("deltas (-want +got):\n%s", diff)
		}
		r.MustCall = false
		r.Messages = append(r.Messages, res.Message,
			model.Message{Role: model.RoleTool, CallID: "call_a", Text: "äx"},
			model.Message{Role: model.RoleTool, CallID: "call_b", Text: "no screen", Failed: true})
		res, _ = generate(t, m, r)
		if len(res.Message.Calls) != 1 || res.Message.Calls[0].ID == "" {
			t.Fatalf("second response: %+v, want one call with an ID", res)
		}
		r.Messages = append(r.Messages, res.Message,
			model.Message{Role: model.RoleTool, CallID: res.Message.Calls[0].ID, Text: "the screen", Images: []model.Image{picture(t)}},
			model.Message{Role: model.RoleUser, Text: "And this?", Images: []model.Image{picture(t)}})
		generate(t, m, r)
		checkRequests(t, m, s)
	})
}

// checkRequests checks what the server has got of TestCalls.
func checkRequests(t *testing.T, m model.Model, s *script.Model) {
	t.Helper()
	requests := s.Requests()
	if !requests[0].MustCall || requests[1].MustCall {
		t.Errorf("must call: %v and %v, want true and false", requests[0].MustCall, requests[1].MustCall)
	}
	if diff := cmp.Diff(withTools(model.Request{}).Tools, requests[0].Tools); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	last := requests[2].Messages
	images := 0
	for _, message := range last {
		for _, got := range message.Images {
			images++
			if !cmp.Equal(got, picture(t)) {
				t.Errorf("image %+v, want the one that was sent", got)
			}
		}
	}
	if images != 2 || last[len(last)-1].Role != model.RoleUser {
		t.Errorf("the last request has %d images, want 2: %+v", images, last)
	}
	_, isAnthropic := m.(*anthropic.Model)
	failed := requests[1].Messages[3]
	if failed.Text != "no screen" || !failed.Failed {
		if isAnthropic || failed.Text != "Error: no screen" {
			t.Errorf("failed result: %+v", failed)
		}
	}
	keepsReasoning := isAnthropic || strings.Contains(t.Name(), "responses")
	if got := len(requests[1].Messages[1].Opaque) > 0; got != keepsReasoning {
		t.Errorf("reasoning was sent back: %v, want %v", got, keepsReasoning)
	}
}

// bytewise sends each byte of a response on its own.
func bytewise(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(byteWriter{w}, r) })
}

type byteWriter struct{ http.ResponseWriter }

func (w byteWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w byteWriter) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := w.ResponseWriter.Write(p[i : i+1]); err != nil {
			return i, err
		}
		if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

func TestBytewise(t *testing.T) {
	t.Parallel()
	eachClient(t, callScript+"\n[[turn]]\ntext = \"Größe 🙂 ok\"\n", bytewise, func(t *testing.T, m model.Model, _ *script.Model) {
		t.Helper()
		r := withTools(ask("Größe"))
		res, deltas := generate(t, m, r)
		if res.Message.Text != "I do both." || len(res.Message.Calls) != 2 || res.Message.Calls[0].Arguments != `{"command":"echo 'ä \"x\"'"}` {
			t.Errorf("response: %+v", res)
		}
		if len(deltas) != 5 {
			t.Errorf("deltas: %+v, want 5", deltas)
		}
	})
}

// recorded is the body of a response.
type recorded struct {
	status int
	header http.Header
	body   []byte
}

// replay responds with a part of a recorded response, and then loses the connection, or ends the
// response in order.
type replay struct {
	recorded
	n       int
	orderly bool
}

func (r replay) RoundTrip(*http.Request) (*http.Response, error) {
	body := io.MultiReader(bytes.NewReader(r.body[:r.n]), failingReader{})
	if r.n == len(r.body) || r.orderly {
		body = bytes.NewReader(r.body[:r.n])
	}
	return &http.Response{StatusCode: r.status, Header: r.header, Body: io.NopCloser(body), ProtoMajor: 1, ProtoMinor: 1}, nil
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// record returns what a server of a script responds to a client.
func record(tb testing.TB, name, text string) recorded {
	tb.Helper()
	s, err := script.Parse([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	server := script.NewServer(s, script.ServerOptions{})
	var got recorded
	calls := model.Calls{Client: &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, req)
		got = recorded{w.Code, w.Header(), w.Body.Bytes()}
		return w.Result(), nil
	})}}
	m, err := clients[name]("http://localhost", testKey, calls)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := m.Generate(context.Background(), withTools(ask("x")), nil); err != nil { //nolint:usetesting // a fuzz target records before it has a test
		tb.Fatal(err)
	}
	return got
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCutAnywhere loses the connection after each byte of a response: the message is complete or
// there is an error that may be repeated.
func TestCutAnywhere(t *testing.T) {
	t.Parallel()
	for name, open := range clients {
		whole := record(t, name, callScript)
		for _, orderly := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, orderly %v", name, orderly), func(t *testing.T) {
				t.Parallel()
				cutAnywhere(t, open, replay{recorded: whole, orderly: orderly})
			})
		}
	}
}

// withUsage returns a response with the usage that it lacks if a stream of chat completions ends
// in order behind the message: some servers send no more.
func withUsage(r model.Response, usage model.Usage, orderly bool) model.Response {
	if orderly && r.Usage == (model.Usage{}) {
		r.Usage = usage
	}
	return r
}

func cutAnywhere(t *testing.T, open func(url, key string, calls model.Calls) (model.Model, error), whole replay) {
	t.Helper()
	var want model.Response
	failed := 0
	for n := len(whole.body); n >= 0; n-- {
		m, err := open("http://localhost", testKey, model.Calls{Attempts: 1, Client: &http.Client{Transport: replay{whole.recorded, n, whole.orderly}}})
		if err != nil {
			t.Fatal(err)
		}
		res, err := m.Generate(t.Context(), withTools(ask("x")), nil)
		switch {
		case n == len(whole.body) && err != nil:
			t.Fatal(err)
		case n == len(whole.body):
			want = res
		case err == nil && !cmp.Equal(want, withUsage(res, want.Usage, whole.orderly)):
			t.Fatalf("after %d bytes: a wrong response: %+v", n, res)
		case err != nil:
			failed++
			if sandpit.CodeOf(err) != sandpit.Unavailable || !sandpit.Retryable(err) {
				t.Fatalf("after %d bytes: %v (%s), want unavailable", n, err, sandpit.CodeOf(err))
			}
		}
	}
	if failed < len(whole.body)/2 {
		t.Errorf("%d of %d cuts failed, want most of them", failed, len(whole.body))
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	eachClient(t, `
[[turn]]
error = { kind = "rate_limit", retry_after = "60ms" }
[[turn]]
error = { kind = "overloaded" }
[[turn]]
error = { kind = "server" }
[[turn]]
error = { kind = "cut" }
[[turn]]
text = "Finally."
`, nil, func(t *testing.T, m model.Model, s *script.Model) {
		t.Helper()
		start := time.Now()
		if res, _ := generate(t, m, ask("x")); res.Message.Text != "Finally." {
			t.Errorf("response: %+v", res)
		}
		if took := time.Since(start); took < 60*time.Millisecond {
			t.Errorf("took %v, which is shorter than Retry-After", took)
		}
		if n := len(s.Requests()); n != 5 {
			t.Errorf("%d requests, want 5", n)
		}
	})
}

// TestCutInText loses the connection behind a part of the text: the request is repeated only if
// the caller has not got that part.
func TestCutInText(t *testing.T) {
	t.Parallel()
	eachClient(t, `
[[turn]]
text = "One two"
error = { kind = "cut" }
[[turn]]
text = "Three"
`, nil, func(t *testing.T, m model.Model, s *script.Model) {
		t.Helper()
		text := ""
		_, err := m.Generate(t.Context(), ask("x"), func(d model.Delta) { text += d.Text })
		if sandpit.CodeOf(err) != sandpit.Unavailable || text != "One two" || len(s.Requests()) != 1 {
			t.Errorf("%v (%s), text %q, %d requests; want unavailable, the text, one request", err, sandpit.CodeOf(err), text, len(s.Requests()))
		}
	})
	eachClient(t, `
[[turn]]
text = "One two"
error = { kind = "overloaded" }
[[turn]]
text = "Three"
`, nil, func(t *testing.T, m model.Model, _ *script.Model) {
		t.Helper()
		res, err := m.Generate(t.Context(), ask("x"), nil)
		if err != nil || res.Message.Text != "Three" {
			t.Errorf("%+v, %v; want the second attempt", res, err)
		}
	})
}

func TestBudget(t *testing.T) {
	t.Parallel()
	eachClient(t, `
[[turn]]
error = { kind = "rate_limit", retry_after = "2m" }
[[turn]]
error = { kind = "server" }
times = 9
`, nil, func(t *testing.T, m model.Model, s *script.Model) {
		t.Helper()
		_, err := m.Generate(t.Context(), ask("x"), nil)
		if sandpit.CodeOf(err) != sandpit.Exhausted || !sandpit.Retryable(err) || sandpit.RetryAfterOf(err) != 2*time.Minute || len(s.Requests()) != 1 {
			t.Errorf("%v (%s, after %v), %d requests; want exhausted at once", err, sandpit.CodeOf(err), sandpit.RetryAfterOf(err), len(s.Requests()))
		}
		_, err = m.Generate(t.Context(), ask("x"), nil)
		if n := len(s.Requests()) - 1; sandpit.CodeOf(err) != sandpit.Unavailable || n != 5 {
			t.Errorf("%v (%s) after %d requests, want unavailable after 5", err, sandpit.CodeOf(err), n)
		}
		if sandpit.RequestIDOf(err) == "" {
			t.Errorf("%v has no request ID", err)
		}
	})
}

// TestFinal has the errors that no repetition helps against.
func TestFinal(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]sandpit.Code{
		"quota": sandpit.Exhausted, "unauthenticated": sandpit.Unauthenticated, "invalid": sandpit.Invalid,
		"too_long": sandpit.Invalid, "nonsense": sandpit.Internal,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			eachClient(t, "[[turn]]\nerror = { kind = \""+kind+"\" }\n[[turn]]\ntext = \"no\"\n", nil, func(t *testing.T, m model.Model, s *script.Model) {
				t.Helper()
				_, err := m.Generate(t.Context(), ask("x"), nil)
				if sandpit.CodeOf(err) != want || sandpit.Retryable(err) || len(s.Requests()) != 1 {
					t.Errorf("%v (%s, retryable %v), %d requests; want %s at once", err, sandpit.CodeOf(err), sandpit.Retryable(err), len(s.Requests()), want)
				}
				if got := errors.Is(err, model.ErrTooLong); got != (kind == "too_long") {
					t.Errorf("%v is ErrTooLong: %v", err, got)
				}
				if _, ok := errors.AsType[*model.APIError](err); ok == (kind == "nonsense") {
					t.Errorf("%v is an APIError: %v", err, ok)
				}
			})
		})
	}
}

func TestStops(t *testing.T) {
	t.Parallel()
	for _, stop := range []model.StopReason{model.StopRefusal, model.StopLength, model.StopEnd} {
		t.Run(string(stop), func(t *testing.T) {
			t.Parallel()
			eachClient(t, "[[turn]]\ntext = \"I cannot\"\nstop = \""+string(stop)+"\"\n", nil, func(t *testing.T, m model.Model, _ *script.Model) {
				t.Helper()
				if res, _ := generate(t, m, ask("x")); res.Stop != stop || res.Message.Text != "I cannot" {
					t.Errorf("response: %+v, want %s", res, stop)
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	eachClient(t, "[[turn]]\ntext = \"One two\"\nerror = { kind = \"hang\" }\n", nil, func(t *testing.T, m model.Model, s *script.Model) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := m.Generate(ctx, ask("x"), func(model.Delta) { cancel() })
		if sandpit.CodeOf(err) != sandpit.Canceled || len(s.Requests()) != 1 {
			t.Errorf("%v (%s), want canceled", err, sandpit.CodeOf(err))
		}
	})
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	eachClient(t, "[[turn]]\nerror = { kind = \"hang\" }\n", nil, func(t *testing.T, m model.Model, _ *script.Model) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := m.Generate(ctx, ask("x"), nil); sandpit.CodeOf(err) != sandpit.Timeout {
			t.Errorf("%v (%s), want timeout", err, sandpit.CodeOf(err))
		}
	})
}

func TestSilence(t *testing.T) {
	t.Parallel()
	for name, open := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(script.NewServer(parse(t, "[[turn]]\ntext = \"One\"\nerror = { kind = \"hang\" }\n"), script.ServerOptions{}))
			defer server.Close()
			m, err := open(server.URL, testKey, model.Calls{Client: server.Client(), IdleTimeout: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.Generate(t.Context(), ask("x"), nil); sandpit.CodeOf(err) != sandpit.Timeout {
				t.Errorf("%v (%s), want timeout", err, sandpit.CodeOf(err))
			}
		})
	}
}

// TestSecrets looks for the key in errors, also of servers that repeat it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	responses := map[string]http.HandlerFunc{
		"wrong key": script.NewServer(parse(t, "[[turn]]\n"), script.ServerOptions{Key: "another"}).ServeHTTP,
		"repeats": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, fmt.Sprintf("bad headers: %v", r.Header), http.StatusBadRequest)
		},
		"repeats in a stream": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"x\",\"message\":\"%v\"}}\n\n", r.Header)
		},
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"no stream": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hello</html>")) },
		"breaks":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	for what, respond := range responses {
		for name, open := range clients {
			t.Run(what+"/"+name, func(t *testing.T) {
				t.Parallel()
				var redirected atomic.Bool
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/elsewhere" {
						redirected.Store(true)
					}
					respond(w, r)
				}))
				defer server.Close()
				calls := quick
				calls.Client, calls.Attempts = server.Client(), 2
				m, err := open(server.URL, testKey, calls)
				if err != nil {
					t.Fatal(err)
				}
				_, err = m.Generate(t.Context(), ask("x"), nil)
				text := fmt.Sprintf("%v %+v %s", err, err, sandpit.HintOf(err))
				if err == nil || strings.Contains(text, testKey) || strings.Contains(text, "cdef") || redirected.Load() {
					t.Errorf("error %q (redirected %v), want one without the key", text, redirected.Load())
				}
				if strings.Contains(what, "wrong key") && sandpit.CodeOf(err) != sandpit.Unauthenticated {
					t.Errorf("%v (%s), want unauthenticated", err, sandpit.CodeOf(err))
				}
			})
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	url := "http://" + testport.Reserve(t)
	for name, open := range clients {
		m, err := open(url, testKey, quick)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Generate(t.Context(), ask("x"), nil)
		if sandpit.CodeOf(err) != sandpit.Unavailable || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v (%s), want unavailable", name, err, sandpit.CodeOf(err))
		}
	}
}

// FuzzStream gives the clients streams of any bytes.
func FuzzStream(f *testing.F) {
	for name := range clients {
		f.Add(name, record(f, name, callScript).body)
	}
	f.Add("chat", []byte("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1,\"id\":\"a\"},{\"id\":\"a\"},{}]},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))
	f.Add("messages", []byte("data: {\"type\":\"content_block_delta\",\"index\":-1}\n\n"))
	f.Add("responses", []byte("data: {\"type\":\"response.completed\"}\n\n"))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		open, ok := clients[name]
		if !ok {
			return
		}
		whole := replay{recorded{http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}}, body}, len(body), true}
		m, err := open("http://localhost", testKey, model.Calls{Attempts: 1, Client: &http.Client{Transport: whole}})
		if err != nil {
			t.Fatal(err)
		}
		res, err := m.Generate(t.Context(), ask("x"), func(model.Delta) {})
		if err != nil {
			return
		}
		for _, call := range res.Message.Calls {
			if call.ID == "" && name != "messages" {
				t.Errorf("call %+v has no ID", call)
			}
		}
		if res.Message.Role != model.RoleAssistant || res.Stop == "" {
			t.Errorf("response %+v has no role or no stop", res)
		}
	})
}
