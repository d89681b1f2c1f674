package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// The operations of the victim.
const (
	metricNeighbourCreate = "create beside a neighbour"
	metricNeighbourExec   = "exec true beside a neighbour"
	metricNeighbourDelete = "delete beside a neighbour"
	byQuiet               = "quiet"
)

// maxSlowdown is the allowed ratio of an operation's p99 during a storm to that without one.
const maxSlowdown = 3

// neighbourImage is the name of the bench's root file system for ordinary owners.
const neighbourImage = "bench.invalid/root:1"

// storm is one way to overload the server: the operation that each worker repeats.
type storm struct {
	name    string
	workers int
	work    func(n *neighbour, ctx context.Context) error
}

// storms are ten ways to exhaust shared resources.
func storms() []storm {
	return []storm{
		{"creates", 16, (*neighbour).stormCreates},
		{"pulls", 16, (*neighbour).stormPulls},
		{"builds", 8, (*neighbour).stormBuilds},
		{"uploads", 8, (*neighbour).stormUploads},
		{"outputs", 16, (*neighbour).stormOutputs},
		{"connections", 64, (*neighbour).stormConnections},
		{"refused requests", 8, (*neighbour).stormRefusals},
		{"forks", 4, (*neighbour).stormForks},
		{"commands", 32, (*neighbour).stormCommands},
		{"disk", 8, (*neighbour).stormDisk},
	}
}

// neighbour is the owner that storms.
type neighbour struct {
	url, key string
	client   *client.Client
	registry string            // sends layers slowly
	home     []*client.Sandbox // in which it storms
	mu       sync.Mutex
	count    int
}

// number returns a new number at each call.
func (n *neighbour) number() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	return n.count
}

// neighbours measures how much one owner's storms slow down another owner.
func (k *kit) neighbours(ctx context.Context) (err error) {
	if !k.o.wants(nameNeighbours) {
		return nil
	}
	registry := slowRegistry()
	defer registry.Close()
	host := strings.TrimPrefix(registry.URL, "http://")
	s, url, _, err := k.openServer(ctx, "neighbours", fmt.Sprintf("[image]\nregistries = [%q]\ninsecure = [%q]\n", host, host))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := k.importForAll(ctx); err != nil {
		return err
	}
	bob, key, err := k.newOwner(ctx, url, "bob")
	if err != nil {
		return err
	}
	bob.Close()
	victim := victim{URL: url, Key: key, Samples: k.o.samples(100)}
	n := &neighbour{url: url, registry: host}
	if n.client, n.key, err = k.newOwner(ctx, url, "alice"); err != nil {
		return err
	}
	defer n.client.Close()
	if err := k.measureVictim(ctx, victim, byQuiet); err != nil {
		return err
	}
	for _, st := range storms() {
		if err := k.measureStorm(ctx, victim, n, st); err != nil {
			return fmt.Errorf("beside %s: %w", st.name, err)
		}
	}
	return nil
}

// importForAll imports the root file system under a name that ordinary owners may use.
func (k *kit) importForAll(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, k.engine, "image", "import", k.root.path, "--name", neighbourImage)
	cmd.Env = append(cmd.Environ(), "SANDPIT_CACHE_DIR="+filepath.Join(k.dir, "neighbours", "cache"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import the root file system: %w: %s", err, lastWords(string(out)))
	}
	return nil
}

// newOwner returns a client with an ordinary key.
func (k *kit) newOwner(ctx context.Context, url, owner string) (*client.Client, string, error) {
	admin, err := client.New(client.Options{URL: "unix://" + filepath.Join(k.dir, "neighbours", "sock")})
	if err != nil {
		return nil, "", err
	}
	defer admin.Close()
	key, err := admin.Keys.Create(ctx, owner, owner, 0, false)
	if err != nil {
		return nil, "", err
	}
	c, err := client.New(client.Options{URL: url, Key: key.Secret})
	return c, key.Secret, err
}

// measureStorm measures the victim while all workers of a storm run.
func (k *kit) measureStorm(ctx context.Context, victim victim, n *neighbour, st storm) error {
	storming, calm := context.WithCancel(ctx)
	if err := n.settle(ctx); err != nil {
		calm()
		return err
	}
	var workers sync.WaitGroup
	for range st.workers {
		workers.Go(func() {
			for storming.Err() == nil {
				// A refused operation is retried at once, as part of the storm.
				if st.work(n, storming) != nil {
					_ = pauseFor(storming, 5*time.Millisecond)
				}
			}
		})
	}
	err := pauseFor(ctx, k.o.sizes().settle)
	if err == nil {
		err = k.measureVictim(ctx, victim, st.name)
	}
	calm()
	workers.Wait()
	return errors.Join(err, n.clear(ctx))
}

// settle gives the neighbour two sandboxes to storm in.
func (n *neighbour) settle(ctx context.Context) error {
	n.home = nil
	for range 2 {
		box, err := n.client.Sandboxes.Create(ctx, client.CreateRequest{Spec: sandpit.Spec{Image: neighbourImage}})
		if err != nil {
			return withHint(err)
		}
		n.home = append(n.home, box)
	}
	return nil
}

// clear removes all resources of the neighbour.
func (n *neighbour) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	list, err := n.client.Sandboxes.List(ctx, client.Filter{})
	errs := []error{err}
	for _, box := range list {
		if err := n.client.Sandboxes.Delete(ctx, box.ID); !errors.Is(err, sandpit.NotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// box returns one of the sandboxes to storm in.
func (n *neighbour) box() *client.Sandbox { return n.home[n.number()%len(n.home)] }

func (n *neighbour) stormCreates(ctx context.Context) error {
	box, err := n.client.Sandboxes.Create(ctx, client.CreateRequest{Spec: sandpit.Spec{Image: neighbourImage}})
	if err != nil {
		return err
	}
	return box.Delete(ctx)
}

func (n *neighbour) stormPulls(ctx context.Context) error {
	_, err := n.client.Sandboxes.Create(ctx, client.CreateRequest{Spec: sandpit.Spec{
		Image: sandpit.Image(fmt.Sprintf("%s/storm/image%d:1", n.registry, n.number())),
	}})
	return err
}

func (n *neighbour) stormBuilds(ctx context.Context) error {
	_, b, err := n.client.Templates.Build(ctx, client.TemplateRequest{
		Name: fmt.Sprintf("storm%d", n.number()%40), Recipe: sandpit.Recipe{
			From: neighbourImage, Steps: []sandpit.RecipeStep{{Run: sandpit.ShellArgs(fmt.Sprintf("dd if=/dev/zero of=/storm bs=1M count=64; sleep 600; : %d", n.number()))}},
		},
	})
	if err != nil {
		return err
	}
	_, err = n.client.Builds.Wait(ctx, b.ID, func(sandpit.BuildLog) {})
	return err
}

func (n *neighbour) stormUploads(ctx context.Context) error {
	return n.request(ctx, http.MethodPut, fmt.Sprintf("/v1/sandboxes/%s/files?path=/tmp/storm%d", n.box().ID, n.number()%4),
		io.LimitReader(zeros{}, 64<<20))
}

// stormOutputs requests a large response and does not read it for a while.
func (n *neighbour) stormOutputs(ctx context.Context) error {
	body := `{"command": "head -c 16000000 /dev/zero; head -c 16000000 /dev/zero >&2", "max_output": 16777216}`
	res, err := n.send(ctx, http.MethodPost, fmt.Sprintf("/v1/sandboxes/%s/run", n.box().ID), strings.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it is deliberately not read
	return pauseFor(ctx, 5*time.Second)
}

// stormConnections opens connections and sends half a request on each.
func (n *neighbour) stormConnections(ctx context.Context) error {
	var list []net.Conn
	defer func() {
		for _, c := range list {
			_ = c.Close() // nothing is lost
		}
	}()
	for range 32 {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(n.url, "http://"))
		if err != nil {
			return err
		}
		list = append(list, c)
		if _, err := fmt.Fprintf(c, "POST /v1/volumes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: %s\r\nContent-Length: 1000\r\n\r\n", n.key); err != nil {
			return err
		}
	}
	return pauseFor(ctx, time.Second)
}

func (n *neighbour) stormRefusals(ctx context.Context) error {
	return n.request(ctx, http.MethodGet, "/v1/keys", nil)
}

func (n *neighbour) stormForks(ctx context.Context) error {
	forks, err := n.client.Sandboxes.Fork(ctx, n.box().ID, client.ForkRequest{Count: 2})
	for _, f := range forks {
		err = errors.Join(err, n.client.Sandboxes.Delete(ctx, f.ID))
	}
	return err
}

func (n *neighbour) stormCommands(ctx context.Context) error {
	_, err := n.box().RunWith(ctx, client.RunOptions{}, "true")
	return err
}

func (n *neighbour) stormDisk(ctx context.Context) error {
	_, err := n.box().RunWith(ctx, client.RunOptions{}, "sh", "-c", fmt.Sprintf("dd if=/dev/zero of=/var/storm%d bs=1M count=512; sync", n.number()%4))
	return err
}

func (n *neighbour) request(ctx context.Context, method, path string, body io.Reader) error {
	res, err := n.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // only read
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

func (n *neighbour) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, n.url+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Api-Key", n.key)
	return http.DefaultClient.Do(req)
}

// zeros is a reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// slowRegistry serves an image under every name, with its layer one byte at a time.
func slowRegistry() *httptest.Server {
	config := `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("0", 64) + `"]}}`
	layer := "sha256:" + strings.Repeat("1", 64)
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
		"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},
		"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":1000000}]}`, digestOf(config), len(config), layer)
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, layer):
			w.Header().Set("Content-Length", "1000000")
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte{0}); err != nil || http.NewResponseController(w).Flush() != nil || pauseFor(r.Context(), time.Second) != nil {
					return
				}
			}
		case strings.Contains(r.URL.Path, "/blobs/"):
			_, _ = io.WriteString(w, config)
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			_, _ = io.WriteString(w, manifest)
		}
	}))
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// neighbourTargets compare each storm's p99 with the quiet one.
func neighbourTargets(r *report) []target {
	var list []target
	for _, metric := range []string{metricNeighbourCreate, metricNeighbourExec, metricNeighbourDelete} {
		quiet, have := r.find(metric, byQuiet)
		for _, st := range storms() {
			x, had := r.find(metric, st.name)
			q, ok := ratio(x.P99, quiet.P99)
			list = append(list, check(fmt.Sprintf("p99 of %s: %s, of the quiet one", metric, st.name), maxSlowdown, q, have && had && ok))
		}
	}
	return list
}
