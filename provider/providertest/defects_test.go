package providertest_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// defect is one way to be broken, and the check that must detect it. Nil fields work correctly.
type defect struct {
	check string

	list     func(p *fake.Provider, good []sandpit.Placement) []sandpit.Placement
	attach   func(error) error
	create   func(context.Context, *fake.Provider, sandpit.ID, sandpit.Spec) (*fake.Instance, error)
	destroy  func(i *fake.Instance, times int) error
	exit     func(sandpit.Exit) sandpit.Exit
	pause    func() error
	stop     func(i *instance) error
	http     func(error) error
	command  func(*sandpit.Command)
	process  func(context.Context, sandpit.Process) sandpit.Process
	guest    func(sandpit.Guest) sandpit.Guest
	follow   func(*sandpit.FollowOptions)
	followed func(*sandpit.Followed)
	left     []string
}

// provider is a fake one with a defect.
type provider struct {
	*fake.Provider

	defect defect
}

func (p *provider) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	make := func(ctx context.Context, p *fake.Provider, id sandpit.ID, spec sandpit.Spec) (*fake.Instance, error) {
		i, err := p.Create(ctx, id, spec)
		own, _ := i.(*fake.Instance)
		return own, err
	}
	if p.defect.create != nil {
		make = p.defect.create
	}
	i, err := make(ctx, p.Provider, id, spec)
	return p.instance(i), err
}

func (p *provider) List(ctx context.Context) ([]sandpit.Placement, error) {
	list, err := p.Provider.List(ctx)
	if p.defect.list != nil {
		list = p.defect.list(p.Provider, list)
	}
	return list, err
}

func (p *provider) Attach(ctx context.Context, handle []byte) (sandpit.Instance, error) {
	i, err := p.Provider.Attach(ctx, handle)
	if err != nil {
		if p.defect.attach != nil {
			err = p.defect.attach(err)
		}
		return nil, err
	}
	own, _ := i.(*fake.Instance)
	return p.instance(own), nil
}

func (p *provider) instance(i *fake.Instance) sandpit.Instance {
	if i == nil {
		return nil
	}
	inst := &instance{Instance: i, provider: p}
	journal, _ := i.Guest().(sandpit.Journal)
	inst.guest = &guest{Guest: i.Guest(), Journal: journal, defect: p.defect}
	if p.defect.guest != nil {
		inst.guest = p.defect.guest(inst.guest)
	}
	return inst
}

// instance is a sandbox with a defect.
type instance struct {
	*fake.Instance

	provider  *provider
	guest     sandpit.Guest
	destroyed atomic.Int32
}

func (i *instance) Guest() sandpit.Guest { return i.guest }

func (i *instance) Destroy(ctx context.Context) error {
	if err := i.Instance.Destroy(ctx); err != nil || i.provider.defect.destroy == nil {
		return err
	}
	return i.provider.defect.destroy(i.Instance, int(i.destroyed.Add(1)))
}

func (i *instance) Wait(ctx context.Context) (sandpit.Exit, error) {
	exit, err := i.Instance.Wait(ctx)
	if err == nil && i.provider.defect.exit != nil {
		exit = i.provider.defect.exit(exit)
	}
	return exit, err
}

func (i *instance) Pause(ctx context.Context) error {
	if i.provider.defect.pause != nil {
		return i.provider.defect.pause()
	}
	return i.Instance.Pause(ctx)
}

func (i *instance) Stop(ctx context.Context) error {
	if err := i.Instance.Stop(ctx); err != nil || i.provider.defect.stop == nil {
		return err
	}
	return i.provider.defect.stop(i)
}

func (i *instance) HTTP(port int) http.RoundTripper {
	if i.provider.defect.http == nil {
		return i.Instance.HTTP(port)
	}
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		res, err := i.Instance.HTTP(port).RoundTrip(r)
		if err != nil {
			err = i.provider.defect.http(err)
		}
		return res, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// guest is one whose processes have a defect.
type guest struct {
	sandpit.Guest
	sandpit.Journal

	defect defect
}

func (g *guest) Follow(ctx context.Context, id string, o sandpit.FollowOptions) (sandpit.Followed, error) {
	if g.defect.follow != nil {
		g.defect.follow(&o)
	}
	followed, err := g.Journal.Follow(ctx, id, o)
	if g.defect.followed != nil {
		g.defect.followed(&followed)
	}
	return followed, err
}

func (g *guest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	if g.defect.command != nil {
		g.defect.command(&cmd)
	}
	p, err := g.Guest.Start(ctx, cmd)
	if err == nil && g.defect.process != nil {
		p = g.defect.process(ctx, p)
	}
	return p, err
}

func defects() map[string]defect {
	all := defectsOfBoxes()
	maps.Copy(all, defectsOfProcesses())
	maps.Copy(all, defectsOfJournals())
	maps.Copy(all, defectsOfFiles())
	return all
}

func defectsOfJournals() map[string]defect {
	return map[string]defect{
		"replays begin at the start": {
			check:  "journal/cut again and again",
			follow: func(o *sandpit.FollowOptions) { o.From = sandpit.Offsets{} },
		},
		"replays skip a byte": {
			check:    "journal/cut again and again",
			followed: func(followed *sandpit.Followed) { followed.Next.Stderr++ },
		},
		"streams are mixed up": {
			check:  "journal/cut from the start",
			follow: func(o *sandpit.FollowOptions) { o.Stdout, o.Stderr = o.Stderr, o.Stdout },
		},
		"dropped output is not reported": {
			check:  "journal/dropped output is reported",
			follow: func(o *sandpit.FollowOptions) { o.Missing = nil },
		},
		"exit codes are not kept": {
			check:    "journal/replay after the end",
			followed: func(followed *sandpit.Followed) { followed.Command.Status = sandpit.ExitStatus{} },
		},
		"ids are ignored": {
			check:   "journal/ids",
			command: func(c *sandpit.Command) { c.ID = "" },
		},
	}
}

func defectsOfBoxes() map[string]defect {
	return map[string]defect{
		"destroyed only once": {
			check: "lifecycle/destroy is idempotent",
			destroy: func(i *fake.Instance, times int) error {
				if times > 1 {
					return sandpit.Errorf(sandpit.NotFound, "sandbox %s does not exist", i.ID())
				}
				return nil
			},
		},
		"a list without labels": {
			check: "lifecycle/list returns specs",
			list: func(_ *fake.Provider, list []sandpit.Placement) []sandpit.Placement {
				for i := range list {
					list[i].Spec.Labels = nil
				}
				return list
			},
		},
		"a list that forgets": {
			check: "crash/list and attach",
			list:  func(*fake.Provider, []sandpit.Placement) []sandpit.Placement { return nil },
		},
		"a list with secrets": {
			check: "lifecycle/list and handle contain no secrets",
			list: func(_ *fake.Provider, list []sandpit.Placement) []sandpit.Placement {
				for i := range list {
					list[i].Spec.Env = map[string]string{"KEY": "hush-hush-7e1f"}
				}
				return list
			},
		},
		"a list with the dead": {
			check: "lifecycle/create and use and destroy",
			list:  withTheDead(),
		},
		"what was given up stays": {
			check: "cancel/create",
			create: func(ctx context.Context, p *fake.Provider, id sandpit.ID, spec sandpit.Spec) (*fake.Instance, error) {
				i, err := p.Create(context.WithoutCancel(ctx), id, spec)
				if err == nil {
					err = ctx.Err()
				}
				own, _ := i.(*fake.Instance)
				return own, err
			},
		},
		"the same id twice": {
			check: "lifecycle/an id is taken once",
			create: func(ctx context.Context, p *fake.Provider, id sandpit.ID, spec sandpit.Spec) (*fake.Instance, error) {
				i, err := p.Create(ctx, id, spec)
				if sandpit.CodeOf(err) == sandpit.AlreadyExists {
					i, err = p.Create(ctx, sandpit.NewID(), spec)
				}
				own, _ := i.(*fake.Instance)
				return own, err
			},
		},
		"handles that fail otherwise": {
			check:  "crash/bad handles",
			attach: func(error) error { return sandpit.Errorf(sandpit.Internal, "broken") },
		},
		"an exit without a reason": {
			check: "lifecycle/wait by many",
			exit:  func(sandpit.Exit) sandpit.Exit { return sandpit.Exit{Known: true} },
		},
		"a closed port that is gone": {
			check: "ports/nothing listens",
			http:  func(error) error { return sandpit.Errorf(sandpit.Gone, "broken") },
		},
		"what is gone is unavailable": {
			check: "lifecycle/destroyed sandboxes are gone",
			http:  func(error) error { return sandpit.Errorf(sandpit.Unavailable, "broken") },
		},
		"a pause without effect": {
			check: "abilities/pause and resume",
			pause: func() error { return nil },
		},
		"a stop that loses files": {
			check: "abilities/stop and start",
			stop: func(i *instance) error {
				view, _ := i.provider.World().Look(i.ID())
				return os.RemoveAll(view.Dir + "/workspace")
			},
		},
		"something is left": {
			check: "lifecycle/destroy is idempotent",
			left:  []string{"a file"},
		},
	}
}

// withTheDead returns a List that repeats everything it ever returned.
func withTheDead() func(*fake.Provider, []sandpit.Placement) []sandpit.Placement {
	seen := make(map[sandpit.ID]sandpit.Placement)
	return func(_ *fake.Provider, list []sandpit.Placement) []sandpit.Placement {
		for _, p := range list {
			seen[p.ID] = p
		}
		return slices.Collect(maps.Values(seen))
	}
}

// exitsWell is a process that never fails.
type exitsWell struct{ sandpit.Process }

func (p exitsWell) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	_, err := p.Process.Wait(ctx)
	return sandpit.ExitStatus{}, err
}

// deaf is a process whose terminal keeps its size.
type deaf struct{ sandpit.Process }

func (deaf) Resize(context.Context, sandpit.TerminalSize) error { return nil }

// cut writes a beginning only.
type cut struct {
	to   io.Writer
	left int
}

func (w *cut) Write(b []byte) (int, error) {
	n := min(w.left, len(b))
	w.left -= n
	if w.to != nil && n > 0 {
		_, _ = w.to.Write(b[:n])
	}
	return len(b), nil
}

func defectsOfProcesses() map[string]defect {
	return map[string]defect{
		"exit codes are lost": {
			check:   "commands/exit codes",
			process: func(_ context.Context, p sandpit.Process) sandpit.Process { return exitsWell{p} },
		},
		"one stream for both": {
			check:   "streams/output is two streams",
			command: func(c *sandpit.Command) { c.Stderr = c.Stdout },
		},
		"output ends early": {
			check:   "streams/16 MiB both ways",
			command: func(c *sandpit.Command) { c.Stdout = &cut{c.Stdout, 1 << 20} },
		},
		"output is discarded without a reader": {
			check: "streams/a slow reader holds back",
			command: func(c *sandpit.Command) {
				if len(c.Args) > 5 {
					c.Stdout = nil
				}
			},
		},
		"timeouts are forgotten": {
			check:   "signals/timeout",
			command: func(c *sandpit.Command) { c.Timeout = 0 },
		},
		"tags are forgotten": {
			check:   "connect/list what runs",
			command: func(c *sandpit.Command) { c.Tag = "" },
		},
		"the environment is forgotten": {
			check:   "commands/environment",
			command: func(c *sandpit.Command) { c.Env = nil },
		},
		"the directory is forgotten": {
			check:   "commands/working directory",
			command: func(c *sandpit.Command) { c.Dir = "" },
		},
		"processes end with their caller": {
			check: "connect/outlive the caller",
			process: func(ctx context.Context, p sandpit.Process) sandpit.Process {
				context.AfterFunc(ctx, func() { _ = p.Signal(context.WithoutCancel(ctx), sandpit.SIGKILL) })
				return p
			},
		},
		"terminals keep their size": {
			check:   "terminal/size",
			process: func(_ context.Context, p sandpit.Process) sandpit.Process { return deaf{p} },
		},
	}
}

// files is a guest with broken file calls.
type files struct {
	sandpit.Guest

	read  func(sandpit.Guest, context.Context, string, int64, int64) (io.ReadCloser, error)
	list  func([]sandpit.File)
	write func(*sandpit.WriteOptions)
	tree  bool // streams are thrown away
	watch func(*sandpit.WatchOptions)
	stat  func(*sandpit.File)
}

func (f *files) ReadRange(ctx context.Context, user, path string, offset, length int64) (io.ReadCloser, error) {
	if f.read != nil {
		return f.read(f.Guest, ctx, path, offset, length)
	}
	return f.Guest.ReadRange(ctx, user, path, offset, length)
}

func (f *files) ListDir(ctx context.Context, user, path string, depth int) ([]sandpit.File, error) {
	list, err := f.Guest.ListDir(ctx, user, path, depth)
	if f.list != nil {
		f.list(list)
	}
	return list, err
}

func (f *files) WriteFile(ctx context.Context, user, path string, content io.Reader, o sandpit.WriteOptions) error {
	if f.write != nil {
		f.write(&o)
	}
	return f.Guest.WriteFile(ctx, user, path, content, o)
}

func (f *files) WriteTree(ctx context.Context, user, path string, tar io.Reader) error {
	if f.tree {
		_, err := io.Copy(io.Discard, tar)
		return err
	}
	return f.Guest.WriteTree(ctx, user, path, tar)
}

func (f *files) Watch(ctx context.Context, user, path string, o sandpit.WatchOptions) (sandpit.Watcher, error) {
	if f.watch != nil {
		f.watch(&o)
	}
	return f.Guest.Watch(ctx, user, path, o)
}

func (f *files) Stat(ctx context.Context, user, path string) (sandpit.File, error) {
	file, err := f.Guest.Stat(ctx, user, path)
	if f.stat != nil {
		f.stat(&file)
	}
	return file, err
}

func defectsOfFiles() map[string]defect {
	with := func(check string, broken files) defect {
		return defect{check: check, guest: func(g sandpit.Guest) sandpit.Guest {
			broken := broken
			broken.Guest = g
			return &broken
		}}
	}
	return map[string]defect{
		"ranges begin at the start": with("files/ranges", files{
			read: func(g sandpit.Guest, ctx context.Context, path string, _, length int64) (io.ReadCloser, error) {
				return g.ReadRange(ctx, "", path, 0, length)
			},
		}),
		"lists are out of order":      with("files/list", files{list: slices.Reverse[[]sandpit.File]}),
		"modes are forgotten":         with("files/modes", files{write: func(o *sandpit.WriteOptions) { o.Mode = 0 }}),
		"metadata is forgotten":       with("files/metadata", files{write: func(o *sandpit.WriteOptions) { o.Metadata = nil }}),
		"links are reported as files": with("paths/links", files{stat: func(f *sandpit.File) { f.Mode, f.LinkTarget = 0o644, "" }}),
		"times are reported wrong":    with("files/stat", files{stat: func(f *sandpit.File) { f.ModifiedAt = f.ModifiedAt.Local().Add(1e9) }}),
		"trees vanish":                with("trees/round trip", files{tree: true}),
		"any stream is a tree":        with("trees/not a tar stream", files{tree: true}),
		"watches see one directory":   with("watch/recursive", files{watch: func(o *sandpit.WatchOptions) { o.Recursive = false }}),
		"watches see too much":        with("watch/one directory only", files{watch: func(o *sandpit.WatchOptions) { o.Recursive = true }}),
		"names lose their spaces": with("paths/odd names", files{stat: func(f *sandpit.File) {
			f.Name = strings.TrimSpace(f.Name)
		}}),
	}
}
