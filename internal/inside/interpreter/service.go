package interpreter

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

const (
	maxContexts = 64
	maxWaiting  = 64 // runs that may wait for one context
)

// Context identifies a context: runs in it share variables.
type Context struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"` // where its kernel starts
}

// Request is code to run, in a context or in the default one of a language.
type Request struct {
	Code     string
	Context  string            // its ID; "" means the default one of Language
	Language string            // "" means Python
	Env      map[string]string // for this run only
}

// Options configure a Service. The zero value is valid.
type Options struct {
	// Dir is the directory of contexts that name none. "" means the current directory.
	Dir string
	// Environ returns the current environment of programs in this sandbox, in addition to the service's own. nil
	// means none.
	Environ func(context.Context) (map[string]string, error)
	// Identity returns a text that differs between copies of a sandbox. When it has changed, kernels reseed their
	// random number generators. nil means that there are no copies.
	Identity func() string
}

// Service runs code in contexts. Its methods may be called concurrently; runs in one context are sequential.
type Service struct {
	options Options

	mu       sync.Mutex
	contexts []*contextState // the oldest first
	defaults map[string]*contextState
	closed   bool
}

// contextState is a context with its kernel.
type contextState struct {
	Context
	language language
	lock     chan struct{} // held while the kernel is used
	waiting  chan struct{}

	// Guarded by lock:
	identity string            // the sandbox's identity at the last use of the kernel
	global   map[string]string // the sandbox's environment at that time
	removed  bool

	mu     sync.Mutex
	kernel *kernel // nil if not started; set only with lock held
}

// currentKernel returns the kernel, or nil.
func (p *contextState) currentKernel() *kernel {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kernel
}

// setKernel sets the context's kernel.
func (p *contextState) setKernel(k *kernel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kernel = k
}

// killKernel kills the kernel, which ends what the context is running.
func (p *contextState) killKernel() {
	if k := p.currentKernel(); k != nil {
		k.unwanted.Store(true)
		k.killGroup()
	}
}

// stopKernel ends the kernel. The caller holds lock.
func (p *contextState) stopKernel() {
	if k := p.currentKernel(); k != nil {
		k.close()
	}
	p.setKernel(nil)
}

// New returns a service without contexts.
func New(options Options) *Service {
	return &Service{options: options, defaults: make(map[string]*contextState)}
}

// Prepare creates the default contexts of some languages and starts their kernels. It skips languages for which the
// image has no program.
func (s *Service) Prepare(ctx context.Context, languages ...string) error {
	for _, language := range languages {
		p, err := s.defaultContext(language)
		if err == nil {
			err = s.withLock(ctx, p, func() error { return s.ensureKernel(ctx, p) })
		}
		if err == nil {
			continue
		}
		if p != nil {
			err = errors.Join(err, s.Remove(p.ID))
		}
		if !errors.Is(err, sandpit.Unsupported) {
			return err
		}
	}
	return nil
}

// Create creates a context and starts its kernel. Default language: Python. Invalid: no such directory. Unsupported:
// the image has no program for the language. Exhausted: too many contexts.
func (s *Service) Create(ctx context.Context, language, dir string) (Context, error) {
	if dir == "" {
		dir = s.options.Dir
	}
	p, err := newContext(language, dir)
	if err != nil {
		return Context{}, err
	}
	if err := s.addContext(p); err != nil {
		return Context{}, err
	}
	if err := s.withLock(ctx, p, func() error { return s.ensureKernel(ctx, p) }); err != nil {
		return Context{}, errors.Join(err, s.Remove(p.ID))
	}
	return p.Context, nil
}

func newContext(name, dir string) (*contextState, error) {
	name, l, err := findLanguage(name)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, sandpit.Errorf(sandpit.Invalid, "working directory %.200q: no such directory", dir)
	}
	return &contextState{
		Context: Context{ID: rand.Text(), Language: name, Dir: dir}, language: l,
		lock: make(chan struct{}, 1), waiting: make(chan struct{}, maxWaiting),
	}, nil
}

func (s *Service) addContext(p *contextState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addContextLocked(p)
}

func (s *Service) addContextLocked(p *contextState) error {
	if s.closed {
		return sandpit.Errorf(sandpit.Unavailable, "the interpreter is closing")
	}
	if len(s.contexts) >= maxContexts {
		return sandpit.Errorf(sandpit.Exhausted, "%d contexts exist already; remove one", maxContexts)
	}
	s.contexts = append(s.contexts, p)
	return nil
}

// Contexts returns all contexts, the newest last.
func (s *Service) Contexts() []Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Context, 0, len(s.contexts))
	for _, p := range s.contexts {
		all = append(all, p.Context)
	}
	return all
}

// Remove deletes a context, even while it runs code. NotFound: no such context.
func (s *Service) Remove(id string) error {
	s.mu.Lock()
	i := slices.IndexFunc(s.contexts, func(p *contextState) bool { return p.ID == id })
	if i < 0 {
		s.mu.Unlock()
		return errNoContext(id)
	}
	p := s.contexts[i]
	s.contexts = slices.Delete(s.contexts, i, i+1)
	maps.DeleteFunc(s.defaults, func(_ string, d *contextState) bool { return d == p })
	s.mu.Unlock()
	p.killKernel()
	p.lock <- struct{}{} // a killed run soon releases the lock
	p.removed = true
	p.stopKernel()
	<-p.lock
	return nil
}

func errNoContext(id string) error {
	return sandpit.Errorf(sandpit.NotFound, "Context %.100s not found", id)
}

// Restart gives a context a new kernel, even while the old one runs code. NotFound: no such context.
func (s *Service) Restart(ctx context.Context, id string) error {
	p, err := s.findContext(id)
	if err != nil {
		return err
	}
	p.killKernel()
	return s.withLock(ctx, p, func() error {
		p.stopKernel()
		return s.ensureKernel(ctx, p)
	})
}

// Run runs code and passes its events to emit, End included. Errors in the code are events; an error of Run says that
// nothing was run, or that ctx or emit ended the run, which is then interrupted. Calls of emit are not concurrent.
func (s *Service) Run(ctx context.Context, req Request, emit func(Event) error) error {
	if err := checkEnv(req.Env); err != nil {
		return err
	}
	p, err := s.contextOf(req)
	if err != nil {
		return err
	}
	return s.withLock(ctx, p, func() error {
		err := s.runOnce(ctx, p, req, emit)
		if errors.Is(err, errNotBegun) { // the kernel was killed since the last run
			err = s.runOnce(ctx, p, req, emit)
		}
		if errors.Is(err, errNotBegun) {
			err = emit(p.currentKernel().failureEvent())
		}
		if err != nil {
			return err
		}
		return emit(End{})
	})
}

// runOnce runs code in the kernel of a context. The caller holds the context's lock.
func (s *Service) runOnce(ctx context.Context, p *contextState, req Request, emit func(Event) error) error {
	if err := s.ensureKernel(ctx, p); err != nil {
		return err
	}
	j := job{Code: req.Code, Language: p.Language, Env: req.Env}
	if now := s.currentIdentity(); now != p.identity {
		j.Reseed, p.identity = true, now
	}
	env, err := s.currentEnviron(ctx)
	if err != nil {
		return err
	}
	if !maps.Equal(env, p.global) {
		j.Global, p.global = env, env
	}
	return p.currentKernel().executeJob(ctx, j, emit)
}

// contextOf returns the context for a request.
func (s *Service) contextOf(req Request) (*contextState, error) {
	switch {
	case req.Context != "" && req.Language != "":
		return nil, sandpit.Errorf(sandpit.Invalid, "Only one of context_id or language can be provided")
	case req.Context != "":
		return s.findContext(req.Context)
	}
	return s.defaultContext(req.Language)
}

func (s *Service) findContext(id string) (*contextState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.contexts, func(p *contextState) bool { return p.ID == id })
	if i < 0 {
		return nil, errNoContext(id)
	}
	return s.contexts[i], nil
}

// defaultContext returns the default context of a language, and creates it at the first use. TypeScript has its own.
func (s *Service) defaultContext(name string) (*contextState, error) {
	name, _, err := findLanguage(name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.defaults[name]; p != nil {
		return p, nil
	}
	p, err := newContext(name, s.options.Dir)
	if err != nil {
		return nil, err
	}
	if err := s.addContextLocked(p); err != nil {
		return nil, err
	}
	s.defaults[name] = p
	return p, nil
}

// withLock calls f with the context's lock held.
func (s *Service) withLock(ctx context.Context, p *contextState, f func() error) error {
	select {
	case p.waiting <- struct{}{}:
		defer func() { <-p.waiting }()
	default:
		return sandpit.Errorf(sandpit.Exhausted, "%d runs wait for this context already", maxWaiting)
	}
	select {
	case p.lock <- struct{}{}:
		defer func() { <-p.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.removed {
		return errNoContext(p.ID)
	}
	return f()
}

// ensureKernel starts a new kernel unless the context has one that can run code.
func (s *Service) ensureKernel(ctx context.Context, p *contextState) error {
	if k := p.currentKernel(); k != nil && k.isAlive() {
		return nil
	}
	p.stopKernel()
	env, err := s.currentEnviron(ctx)
	if err != nil {
		return err
	}
	k, err := startKernel(ctx, p.language, p.Dir, env)
	if err != nil {
		return err
	}
	p.setKernel(k)
	p.identity, p.global = s.currentIdentity(), nil
	return nil
}

func (s *Service) currentIdentity() string {
	if s.options.Identity == nil {
		return ""
	}
	return s.options.Identity()
}

// currentEnviron returns the current environment of this sandbox.
func (s *Service) currentEnviron(ctx context.Context) (map[string]string, error) {
	if s.options.Environ == nil {
		return nil, nil //nolint:nilnil // no environment is valid
	}
	return s.options.Environ(ctx)
}

// Close removes all contexts. Nothing can be run afterwards.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, c := range s.Contexts() {
		_ = s.Remove(c.ID) // it may have been removed meanwhile
	}
}

func isEnvName(name string) bool { return name != "" && !strings.ContainsAny(name, "=\x00") }

func hasNUL(text string) bool { return strings.Contains(text, "\x00") }
