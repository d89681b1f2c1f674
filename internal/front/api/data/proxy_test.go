package data_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// through reaches a guest by the server's proxy.
type through struct {
	rig    *rig
	client *http.Client
	id     sandpit.ID
}

func (p through) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	target, err := url.Parse(p.rig.url + wire.Prefix + "/sandboxes/" + string(p.id) + "/envd" + r.URL.EscapedPath() + "?" + r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	r.URL, r.Host = target, target.Host
	r.Header.Set(ownerHeader, alice)
	return p.client.Transport.RoundTrip(r)
}

// TestProxyIsTheGuest has the usual client of a guest work through the proxy, with a
// key that is not the guest's.
func TestProxyIsTheGuest(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		dir, copied := t.TempDir(), t.TempDir()
		guest := envd.New(through{r, client, id}, "not the key")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		content := strings.Repeat("content ", 100_000)
		if err := guest.WriteFile(ctx, "", dir+"/a b%2f?", strings.NewReader(content), sandpit.WriteOptions{Mode: 0o700, Metadata: map[string]string{"k": "v"}}); err != nil && sandpit.CodeOf(err) != sandpit.Unsupported {
			t.Fatal(err)
		}
		if err := guest.WriteFile(ctx, "", dir+"/a b%2f?", strings.NewReader(content), sandpit.WriteOptions{Mode: 0o700}); err != nil {
			t.Fatal(err)
		}
		file, err := guest.ReadFile(ctx, "", dir+"/a b%2f?")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(file)
		_ = file.Close()
		if string(got) != content || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		tree, err := guest.ReadTree(ctx, "", dir)
		if err != nil {
			t.Fatal(err)
		}
		err = guest.WriteTree(ctx, "", copied, tree)
		_ = tree.Close()
		if err != nil {
			t.Fatal(err)
		}
		list, err := guest.ListDir(ctx, "", copied, 2)
		if len(list) != 1 || err != nil {
			t.Errorf("list: %v, %v", list, err)
		}
		var stdout bytes.Buffer
		p, err := guest.Start(ctx, sandpit.Command{
			Args: []string{"sh", "-c", "cat; exit 3"}, Stdin: strings.NewReader(content), Stdout: &stdout,
		})
		if err != nil {
			t.Fatal(err)
		}
		if status, err := p.Wait(ctx); status.Code != 3 || err != nil || stdout.String() != content {
			t.Errorf("a command: %v, %v, %d bytes", status, err, stdout.Len())
		}
		if _, err := guest.Stat(ctx, "no-such-user", dir); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("another user: %v", err)
		}
		if err := guest.Init(ctx, envd.InitRequest{Token: "ours"}); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("the key is there to be set: %v", err)
		}
	})
	r.idle()
}

// TestProxyStreams has output come before its command has ended, and input while it
// runs.
func TestProxyStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		guest := envd.New(through{r, client, id}, "")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		in, input := io.Pipe()
		output, out := io.Pipe()
		p, err := guest.Start(ctx, sandpit.Command{Args: []string{"cat"}, Stdin: in, Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := io.WriteString(input, "echo"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4)
			if _, err := io.ReadFull(output, got); err != nil || string(got) != "echo" {
				t.Fatalf("%q, %v", got, err)
			}
		}
		_ = input.Close()
		if status, err := p.Wait(ctx); status.Code != 0 || err != nil {
			t.Errorf("%v, %v", status, err)
		}
	})
}

func TestProxyRefusesInit(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	for _, path := range []string{"init", "%69nit", "INIT", "init/", "init/x", "%2finit", "%2e/init", "x%2f..%2finit", "init%20", "%2f%2finit"} {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodPut} {
			got := r.do(r.client, method, id, "/envd/"+path, strings.NewReader(`{"accessToken":"mine"}`))
			if got.status/100 == 3 { // the mux knows a cleaner path
				continue
			}
			got.wantProblem(t, sandpit.PermissionDenied)
		}
	}
	if got := r.do(r.client, http.MethodGet, id, "/envd/health", nil); got.status != http.StatusNoContent {
		t.Errorf("health: %+v", got)
	}
	if got := r.do(r.client, http.MethodGet, id, "/envd/envs", nil); got.status != http.StatusOK {
		t.Errorf("the guest has another key: %+v", got)
	}
}

// impostor makes fake sandboxes whose guest is another.
type impostor struct {
	sandpit.Provider
	guest sandpit.Guest
}

func (p impostor) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	i, err := p.Provider.Create(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	return possessed{i, p.guest}, nil
}

type possessed struct {
	sandpit.Instance
	guest sandpit.Guest
}

func (p possessed) Guest() sandpit.Guest { return p.guest }

// to reaches a guest at an address.
type to struct {
	*http.Transport
	address string
}

func (d to) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Host = d.address
	return d.Transport.RoundTrip(r)
}

// possess starts a server for sandboxes whose guest is a handler. The guest's key is
// "the key".
func possess(t *testing.T, guest http.Handler, name string) *rig {
	t.Helper()
	server := httptest.NewServer(guest)
	transport := &http.Transport{MaxResponseHeaderBytes: 64 << 10, DisableCompression: true}
	world := fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
		if err := world.Close(); err != nil {
			t.Errorf("close the world: %v", err)
		}
	})
	client := envd.New(named{to{transport, server.Listener.Addr().String()}, name}, "the key")
	return rigOn(t, data.Options{}, map[string]sandpit.Provider{"fake": impostor{world.NewProvider(), client}})
}

// named sends every request to one of several guests.
type named struct {
	to
	name string
}

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = n.name
	return n.to.RoundTrip(r)
}

// TestProxyHeaders checks which headers of a client a guest gets, and which of a guest a client gets.
func TestProxyHeaders(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen http.Header
	var path string
	r := possess(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		seen, path = req.Header.Clone(), req.URL.String()
		mu.Unlock()
		w.Header().Set("Trailer", "Grpc-Status, Set-Cookie")
		for name, value := range map[string]string{
			"Content-Type": "text/html", "Set-Cookie": "a=b", "Location": "http://127.0.0.1/", "Access-Control-Allow-Origin": "*",
			"Strict-Transport-Security": "max-age=1", "Refresh": "0;url=http://x", "X-Content-Type-Options": "sniff",
			"Content-Security-Policy": "default-src *", "Cache-Control": "public", "Clear-Site-Data": "*", "Link": "</x>", "Etag": `"x"`,
			"Server": "nginx", "Connection": "Etag", "Www-Authenticate": "Basic", "Alt-Svc": `h3=":1"`, "Service-Worker-Allowed": "/",
		} {
			w.Header().Set(name, value)
		}
		_, _ = io.WriteString(w, "<script>alert(1)</script>")
		w.Header().Set("Grpc-Status", "5")
		w.Header().Set("Set-Cookie", "c=d")
	}), "guest")
	id := r.box()
	req := r.request(t.Context(), http.MethodPost, id, "/envd/process.Process/List?a=b", strings.NewReader("body"))
	for name, value := range map[string]string{
		"Authorization": "Bearer e2b_secret", "X-Api-Key": "secret", "X-Access-Token": "secret", "Cookie": "session=secret",
		"Proxy-Authorization": "secret", "X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4", "X-Real-Ip": "1.2.3.4",
		"Origin": "http://evil", "Referer": "http://x/secret", "Te": "trailers", "Connection": "X-Metadata-Hop", "X-Metadata-Key": "v",
		"Connect-Protocol-Version": "1", "Content-Type": "application/json", "Sandpit-Within": "/d", "Upgrade": "websocket",
	} {
		req.Header.Set(name, value)
	}
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || string(body) != "<script>alert(1)</script>" {
		t.Errorf("%q, %v", body, err)
	}
	res.Header.Del("Date")
	wantTold := http.Header{
		"Content-Type": {"text/html"}, "Etag": {`"x"`}, "X-Content-Type-Options": {"nosniff"}, "Cache-Control": {"no-store"},
		"Content-Security-Policy": {"default-src 'none'; sandbox"}, "Cross-Origin-Resource-Policy": {"same-origin"},
	}
	if diff := cmp.Diff(wantTold, res.Header); diff != "" {
		t.Errorf("headers for the client:\n%s", diff)
	}
	if diff := cmp.Diff(http.Header{"Grpc-Status": {"5"}}, res.Trailer); diff != "" {
		t.Errorf("trailers:\n%s", diff)
	}
	mu.Lock()
	defer mu.Unlock()
	wantSeen := http.Header{
		"X-Access-Token": {"the key"}, "X-Metadata-Key": {"v"}, "Connect-Protocol-Version": {"1"}, "Content-Type": {"application/json"},
		"Sandpit-Within": {"/d"}, "User-Agent": {"Go-http-client/1.1"}, "Content-Length": {"4"},
	}
	if diff := cmp.Diff(wantSeen, seen); diff != "" {
		t.Errorf("headers for the guest:\n%s", diff)
	}
	if path != "/process.Process/List?a=b" {
		t.Errorf("the guest is asked for %q", path)
	}
}

// TestProxyUser passes the name of a guest's user on, and no password.
func TestProxyUser(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	r := possess(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got <- req.Header.Get("Authorization") }), "guest")
	id := r.box()
	for given, want := range map[string]string{
		"Basic cm9vdDo=":         "Basic cm9vdDo=", // root:
		"basic cm9vdDpzZWNyZXQ=": "Basic cm9vdDo=", // root:secret
		"Basic OnNlY3JldA==":     "",               // :secret
		"Basic cm9vdA==":         "",               // root
		"Basic !":                "",
		"Bearer cm9vdDo=":        "",
		"cm9vdDo=":               "",
	} {
		req := r.request(t.Context(), http.MethodGet, id, "/envd/x", nil)
		req.Header.Set("Authorization", given)
		r.send(r.client, req).want(t, http.StatusOK, nil)
		if seen := <-got; seen != want {
			t.Errorf("%q becomes %q, want %q", given, seen, want)
		}
	}
}

// TestProxyGivesUp has a guest that never answers, and clients that go away.
func TestProxyGivesUp(t *testing.T) {
	t.Parallel()
	asked, gone := make(chan bool, 1), make(chan bool, 1)
	r := possess(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if req.URL.Path == "/begun" {
			_, _ = io.WriteString(w, "beginning")
			_ = http.NewResponseController(w).Flush()
		}
		asked <- true
		<-req.Context().Done()
		gone <- true
	}), "guest")
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		for _, path := range []string{"/silent", "/begun"} {
			ctx, giveUp := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				res, err := client.Do(r.request(ctx, http.MethodPost, id, "/envd"+path, strings.NewReader("body")))
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
				failed <- err
			}()
			<-asked
			giveUp()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", path, err)
			}
			<-gone
		}
		r.idle()
	})
}

// TestProxyAnswersEarly has a guest refuse an upload that its client never ends.
func TestProxyAnswersEarly(t *testing.T) {
	t.Parallel()
	r := possess(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusInsufficientStorage)
		_, _ = io.WriteString(w, `{"code":507,"message":"full"}`)
	}), "guest")
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		body, pipe := io.Pipe()
		defer pipe.Close()
		go func() { _, _ = pipe.Write([]byte("and then nothing")) }()
		got := r.do(client, http.MethodPost, id, "/envd/files?path=/x", body)
		if got.status != http.StatusInsufficientStorage || !strings.Contains(got.body, "full") {
			t.Errorf("%+v", got)
		}
		r.idle()
	})
}

// TestProxyAnswersBeforeTheEnd has a client send all of an upload before it reads the answer,
// which the guest gave at once. It gets that answer, and not a broken connection.
func TestProxyAnswersBeforeTheEnd(t *testing.T) {
	t.Parallel()
	r := possess(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusInsufficientStorage)
		_, _ = io.WriteString(w, `{"code":507,"message":"full"}`)
	}), "guest")
	id := r.box()
	const size = 32 << 20
	for range 5 {
		conn := r.dial()
		req := r.request(t.Context(), http.MethodPost, id, "/envd/files?path=/x", io.LimitReader(zeros{}, size))
		req.ContentLength = size
		if err := req.Write(conn); err != nil {
			t.Errorf("send: %v", err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			t.Fatalf("read the answer: %v", err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusInsufficientStorage || !strings.Contains(string(text), "full") || err != nil || !res.Close {
			t.Errorf("%d %q, %v, to be closed: %v", res.StatusCode, text, err, res.Close)
		}
	}
	r.idle()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestTakenAway deletes a sandbox under every kind of call that lasts.
func TestTakenAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		id, dir := r.box(), t.TempDir()
		silence := func() io.Reader { // one each: a caller that gives up closes it
			body, pipe := io.Pipe()
			t.Cleanup(func() { _ = pipe.Close() })
			return body
		}
		stalled := make(chan reply, 3)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, call := range []struct {
			method, target string
			body           io.Reader
		}{
			{http.MethodPut, "/files" + query("path", dir+"/f"), silence()},
			{http.MethodPost, "/envd/files" + query("path", dir+"/g"), silence()},
			{http.MethodPost, "/run", strings.NewReader(`{"command":"sleep 1000"}`)},
		} {
			req := r.request(ctx, call.method, id, call.target, call.body)
			go func() {
				got, err := answerOf(client, req)
				if err != nil {
					t.Error(err)
				}
				stalled <- got
			}()
		}
		stream := r.stream(client, r.request(ctx, http.MethodPost, id, "/run", strings.NewReader(`{"command":"sleep 1000"}`)))
		var started wire.Started
		stream.must("start", &started)
		eventually(t, "all calls have a sandbox", func() bool { return r.manager.Stats().ActiveOperations == 4 })
		if err := r.manager.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		for range cap(stalled) {
			if p := (<-stalled).wantProblem(t, sandpit.Gone); !strings.Contains(p.Detail, "killed by alice") {
				t.Errorf("no reason: %+v", p)
			}
		}
		var p wire.Problem
		if stream.must("error", &p); p.Code != sandpit.Gone || !strings.Contains(p.Detail, "killed by alice") {
			t.Errorf("the event: %+v", p)
		}
		if _, more := stream.next(); more {
			t.Error("there is more after the end")
		}
		r.do(client, http.MethodGet, id, "/files?path=/etc/passwd", nil).wantProblem(t, sandpit.Gone)
	})
}

// TestStuckClient has a client that reads nothing: the sandbox can be deleted all the
// same.
func TestStuckClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	for _, call := range []struct{ method, target, body string }{
		{http.MethodPost, "/run", `{"command":"cat /dev/zero"}`},
		{http.MethodGet, "/files" + query("path", bigFile(t)), ""},
		{http.MethodGet, "/envd/files" + query("path", bigFile(t)), ""},
	} {
		req := r.request(t.Context(), call.method, id, call.target, strings.NewReader(call.body))
		req.Header.Set("Accept", "text/event-stream")
		if err := req.Write(r.dial()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all calls have the sandbox", func() bool { return r.manager.Stats().ActiveOperations == 3 })
	begin := time.Now()
	if err := r.manager.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	t.Logf("deleted after %s", time.Since(begin))
	r.idle()
}
