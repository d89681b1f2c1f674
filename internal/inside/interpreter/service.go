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
	maxWaiting  = 64 // runs that wait for one context
)

// Context is where runs share their variables.
type Context struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"` // where its kernel has started
}

// Request is code to run, in a context or in the default one of a language.
type Request struct {
	Code     string
	Context  string            // its ID; "" means the default one of Language
	Language string            // "" means Python
	Env      map[string]string // for this run; what was set before comes back
}

// Options say how a Service does its work. The zero value is a good one.
type Options struct {
	// Dir is where contexts work that name no directory. "" means the present one.
	Dir string
	// Environ returns the environment that programs of this sandbox have at the moment, beside the
	// service's own. nil means none.
	Environ func(context.Context) (map[string]string, error)
	// Identity returns something that copies of a sandbox differ in. When it has changed, kernels make
	// their random numbers anew. nil means that there are no copies.
	Identity func() string
}

// Service runs code in contexts. Its methods may be called at the same time; runs in one
// context come one after the other.
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
	lock     chan struct{} // taken by who uses the kernel
	waiting  chan struct{}

	// Of who has the turn:
	identity string            // of the sandbox when the kernel was used last
	global   map[string]string // the sandbox's environment then
	removed  bool

	mu     sync.Mutex
	kernel *kernel // nil: none was started. Who has the turn sets it
}

// currentKernel returns the kernel, or nil.
func (p *contextState) currentKernel() *kernel {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kernel
}

// setKernel makes k the context's kernel.
func (p *contextState) setKernel(k *kernel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kernel = k
}

// killKernel ends what the context is running, with its kernel.
func (p *contextState) killKernel() {
	if k := p.currentKernel(); k != nil {
		k.unwanted.Store(true)
		k.killGroup()
	}
}

// stopKernel ends the kernel. The caller has the turn.
func (p *contextState) stopKernel() {
	if k := p.currentKernel(); k != nil {
		k.close()
	}
	p.setKernel(nil)
}

// New returns a service without any context.
func New(options Options) *Service {
	return &Service{options: options, defaults: make(map[string]*contextState)}
}

// Prepare makes the default contexts of some languages, and starts their kernels. A language
// that the image has no program for is left out.
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

// Create makes a context and starts its kernel. Python is the language if none is named. It is Invalid if the directory
// is none, Unsupported if the image has no program for the language, and Exhausted if there are too many contexts.
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
		return sandpit.Errorf(sandpit.Unavailable, "the interpreter is about to end")
	}
	if len(s.contexts) >= maxContexts {
		return sandpit.Errorf(sandpit.Exhausted, "there are %d contexts already; remove one", maxContexts)
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

// Remove ends a context, also while it runs something. It is NotFound if there is none.
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
	p.lock <- struct{}{} // whose run was cut off soon gives it back
	p.removed = true
	p.stopKernel()
	<-p.lock
	return nil
}

func errNoContext(id string) error {
	return sandpit.Errorf(sandpit.NotFound, "Context %.100s not found", id)
}

// Restart gives a context a new kernel, also while the old one runs something. It is NotFound if
// there is no such context.
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

// Run runs code and tells what happens, the End included. What is wrong with the code is told as an event;
// an error says that nothing was run, or that ctx or emit has ended the run, which is interrupted
// then. emit is called by one goroutine at a time.
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
		if errors.Is(err, errNotBegun) { // killed since the last run, perhaps just now
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

// runOnce runs code in the kernel of a context, whose turn the caller has.
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

// contextOf returns the context that a request is for.
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

// defaultContext returns the default context of a language, which it makes at the first time.
// TypeScript has one of its own.
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

// withLock calls f while nobody else uses the context.
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

// ensureKernel sees to it that a context has a kernel which can run code.
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

// currentEnviron is the environment of this sandbox at the moment.
func (s *Service) currentEnviron(ctx context.Context) (map[string]string, error) {
	if s.options.Environ == nil {
		return nil, nil //nolint:nilnil // no environment is a good one
	}
	return s.options.Environ(ctx)
}

// Close ends all contexts. Nothing can be run afterwards.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, c := range s.Contexts() {
		_ = s.Remove(c.ID) // somebody else may have done so meanwhile
	}
}

func isEnvName(name string) bool { return name != "" && !strings.ContainsAny(name, "=\x00") }

func hasNUL(text string) bool { return strings.Contains(text, "\x00") }
