package gvisor

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// Instance is one sandbox of a Provider.
type Instance struct {
	id       sandpit.ID
	provider *Provider
	guest    *envd.Client

	location    *location
	connections *connections
	network     *networkControl
	lifecycle   *lifecycle

	claims atomic.Int64 // how often the sandbox had been claimed when this Instance was made, or claimed it
}

var (
	_ sandpit.Instance      = (*Instance)(nil)
	_ sandpit.Dialer        = (*Instance)(nil)
	_ sandpit.Statser       = (*Instance)(nil)
	_ sandpit.Claimer       = (*Instance)(nil)
	_ sandpit.SaveEstimator = (*Instance)(nil)
	_ sandpit.LayerReader   = (*Instance)(nil)
)

func newInstance(p *Provider, engineDir string, rec record) *Instance {
	i := &Instance{id: rec.ID, provider: p, location: &location{provider: p, id: rec.ID, dir: engineDir}}
	i.claims.Store(int64(rec.Claims))
	i.connections = newConnections(i.location)
	i.connections.refreshToken = i.refreshToken
	i.connections.monitor = liveness.New(rec.ID, i.connections.probeGuest, p.cfg.Liveness)
	g := &gate{}
	i.guest = envd.New(gatedTransport{g, i.HTTP(guest.Port)}, rec.Token)
	i.network = &networkControl{id: rec.ID, sandbox: i.location, trust: trustInstaller{i.guest}, grant: p.grantRanges}
	i.lifecycle = &lifecycle{
		provider: p, states: p.states, id: rec.ID, location: i.location, gate: g, networkLog: i.network.decisions,
	}
	return i
}

// ID implements sandpit.Instance.
func (i *Instance) ID() sandpit.ID { return i.id }

// Handle implements sandpit.Instance.
func (i *Instance) Handle() []byte {
	return handle{Engine: i.location.engine().name(), ID: i.id}.toJSON()
}

// Guest implements sandpit.Instance.
func (i *Instance) Guest() sandpit.Guest { return i.guest }

// HTTP implements sandpit.Instance.
func (i *Instance) HTTP(port int) http.RoundTripper { return i.connections.roundTripper(port) }

// Dial implements sandpit.Dialer.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	return i.connections.dial(ctx, port)
}

// refreshToken has the guest's client use the token in the sandbox's record. After a claim,
// older Instances keep using the token from before, which the guest refuses.
func (i *Instance) refreshToken() {
	rec, err := i.location.engine().record()
	if err == nil && int64(rec.Claims) == i.claims.Load() { // without a record the sandbox has just ended, as the connection shows
		i.guest.UseToken(rec.Token)
	}
}

// Wait implements sandpit.Instance. A sandbox that is stopped or suspended has not ended.
func (i *Instance) Wait(ctx context.Context) (sandpit.Exit, error) {
	for {
		exit, ended, err := i.location.awaitEnd(ctx)
		if err != nil {
			return sandpit.Exit{}, err
		}
		if ended && i.provider.states.notRunning(i.id) == nil && !i.provider.states.archived.has(i.id) {
			return exit, nil
		}
		err = i.location.awaitStart(ctx)
		if sandpit.CodeOf(err) == sandpit.Gone {
			return sandpit.Exit{Reason: "the sandbox was destroyed"}, nil
		}
		if err != nil {
			return sandpit.Exit{}, err
		}
	}
}

// Destroy implements sandpit.Instance.
func (i *Instance) Destroy(ctx context.Context) error {
	err := i.destroy(ctx)
	i.connections.closeIdle()
	if err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", i.id, err)
	}
	return nil
}

// destroy ends the sandbox where it runs and removes its saved states.
func (i *Instance) destroy(ctx context.Context) error {
	p := i.provider
	if !p.states.canStop() {
		return i.location.engine().end(ctx, false)
	}
	lock, err := p.states.lock(ctx, i.id)
	if err != nil {
		return err
	}
	defer lock.Close()
	dirs := []string{i.location.engineDir()}
	if name, err := p.findEngine(i.id); err != nil {
		return err
	} else if dir := filepath.Join(p.engines, name); name != "" && dir != dirs[0] {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		if err := (engineClient{dir, i.id}).end(ctx, false); err != nil {
			return err
		}
	}
	return p.states.remove(ctx, i.id)
}

// diskLimit is how long a guest may take to report how much of the disk is used.
const diskLimit = 5 * time.Second

// Stats implements sandpit.Statser.
func (i *Instance) Stats(ctx context.Context) (sandpit.Stats, error) {
	rep, err := i.location.run(ctx, request{Op: opStats})
	if err != nil {
		return sandpit.Stats{}, err
	}
	if rep.Stats == nil {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Internal, "measure: the engine sent no figures")
	}
	s := *rep.Stats
	if rec, err := i.location.record(); err != nil {
		return s, err
	} else if rec.Spec.Network.Online {
		traffic, err := i.network.traffic(ctx)
		if err != nil && sandpit.CodeOf(err) != sandpit.Unavailable { // its gateway is being restarted
			return s, err
		}
		s.Received, s.Sent = traffic.Received, traffic.Sent
	}
	if rep.Paused {
		return s, nil
	}
	diskCtx, cancel := context.WithTimeout(ctx, diskLimit)
	defer cancel()
	s.Disk, err = i.guest.DiskUsed(diskCtx)
	if diskCtx.Err() != nil && ctx.Err() == nil || sandpit.CodeOf(err) == sandpit.Unavailable {
		return s, nil // the guest is stopped or starved: the machine's figures are known nevertheless
	}
	return s, err
}

// saveOverhead is how many bytes a saved sandbox with hardly any files has.
const saveOverhead = 1 << 20

// EstimateSave implements sandpit.SaveEstimator. The guest reports how large the files are,
// bounded by the sandbox's limit. Those of a paused sandbox do not count, as its guest does
// not respond.
func (i *Instance) EstimateSave(ctx context.Context, memory bool) (int64, error) {
	rep, err := i.location.run(ctx, request{Op: opStats})
	if err != nil {
		return 0, err
	}
	if rep.Stats == nil {
		return 0, sandpit.Errorf(sandpit.Internal, "estimate the saved size: the engine sent no figures")
	}
	bytes := int64(saveOverhead)
	if memory {
		bytes += rep.Stats.Memory
	}
	if rep.Paused {
		return bytes, nil
	}
	files, err := i.guest.DiskUsed(ctx)
	if limit := rep.Stats.Limits.Disk; limit > 0 {
		files = min(files, limit)
	}
	return bytes + max(0, files), err
}

// ReadLayer implements sandpit.LayerReader for a sandbox that runs or is paused. Its programs
// are frozen while the layer is copied to disk, and continue before ReadLayer returns: the
// stream is of one moment. The copy has no name and ends with the reader.
//
// A file with large holes is sparse in the stream, in GNU tar's format. Sockets are left out.
//
// Unsupported, from the reader: the name of a file begins with ".wh.", which in a layer marks
// a removed file.
func (i *Instance) ReadLayer(ctx context.Context) (io.ReadCloser, error) {
	r, err := i.lifecycle.readLayer(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the layer of sandbox %s: %w", i.id, err)
	}
	return r, nil
}

// initGuest gives the guest its token and defaults before any program runs inside, and waits
// until it has them.
func (i *Instance) initGuest(ctx context.Context, rec record) error {
	req := newInitRequest(rec.Spec, rec.Image)
	req.Token = rec.Token
	return i.guest.Init(ctx, req)
}

func newInitRequest(spec sandpit.Spec, img image.Config) envd.InitRequest {
	env := make(map[string]string, len(img.Env)+len(spec.Env))
	maps.Copy(env, img.Env)
	maps.Copy(env, spec.Env)
	return envd.InitRequest{
		Env:     env,
		User:    cmp.Or(spec.User, img.User),
		WorkDir: cmp.Or(spec.WorkDir, img.WorkDir, sandpit.DefaultWorkDir),
	}
}

// Claim implements sandpit.Claimer.
func (i *Instance) Claim(ctx context.Context, spec sandpit.Spec) error {
	if err := i.claim(ctx, spec); err != nil {
		return fmt.Errorf("claim sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) claim(ctx context.Context, spec sandpit.Spec) error {
	if err := validateSpec(spec); err != nil {
		return err
	}
	engine := i.location.engine()
	rec, err := engine.record()
	if err != nil {
		return err
	}
	if _, isCopy := spec.Image.Snapshot(); isCopy {
		spec.Image = rec.Spec.Image // that of the original
	}
	if !rec.Spec.SameMachine(spec) {
		return sandpit.Errorf(sandpit.Invalid, "image, mounts, limits, host name and being online cannot be changed after creation")
	}
	if !rec.Spec.Network.Equal(spec.Network) {
		if err := i.network.setPolicy(ctx, spec.Network); err != nil {
			return err
		}
	}
	req := newInitRequest(spec, rec.Image)
	req.Token, req.Shown, req.Forget = rand.Text(), rec.Token, true
	rec.Spec, rec.Token, rec.Claims = spec, req.Token, rec.Claims+1
	if err := rewriteRecord(engine.dir, rec); err != nil {
		return err
	}
	i.claims.Store(int64(rec.Claims))
	if err := engine.setEnvironment(ctx, spec.Env); err != nil {
		return err
	}
	return i.guest.Init(ctx, req)
}

var (
	_ sandpit.NetworkPolicer   = (*Instance)(nil)
	_ sandpit.NetworkLogger    = (*Instance)(nil)
	_ sandpit.NetworkInspector = (*Instance)(nil)
	_ sandpit.NetworkSecreter  = (*Instance)(nil)
)

// SetNetworkPolicy implements sandpit.NetworkPolicer.
func (i *Instance) SetNetworkPolicy(ctx context.Context, p sandpit.NetworkPolicy) error {
	if err := i.network.setPolicy(ctx, p); err != nil {
		return fmt.Errorf("set the network policy of sandbox %s: %w", i.id, err)
	}
	return nil
}

// NetworkLog implements sandpit.NetworkLogger. An offline sandbox has no decisions.
func (i *Instance) NetworkLog(ctx context.Context, after int64) ([]sandpit.NetworkDecision, error) {
	return i.network.decisions(ctx, after)
}

// NetworkStats implements sandpit.NetworkInspector.
func (i *Instance) NetworkStats(ctx context.Context) (sandpit.NetworkStats, error) {
	rec, err := i.location.record()
	if err != nil || !rec.Spec.Network.Online {
		return sandpit.NetworkStats{}, err
	}
	return i.network.traffic(ctx)
}

// TestNetwork implements sandpit.NetworkInspector.
func (i *Instance) TestNetwork(ctx context.Context, target string) ([]sandpit.NetworkDecision, error) {
	return i.network.explain(ctx, target)
}

// SetNetworkSecrets implements sandpit.NetworkSecreter.
func (i *Instance) SetNetworkSecrets(ctx context.Context, secrets map[string]string) error {
	return i.network.setSecrets(ctx, secrets)
}
