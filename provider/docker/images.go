package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imageInfo is the part of an image's description that a sandbox needs.
type imageInfo struct {
	ID      string            `json:"id"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	WorkDir string            `json:"work_dir,omitempty"`
	Cmd     []string          `json:"cmd,omitempty"`
	Entry   []string          `json:"entrypoint,omitempty"`

	fetched []string // the repositories that the engine fetched it from
}

// imageStore finds and fetches images of the engine. Concurrent callers share one fetch of an image.
type imageStore struct {
	engine    *engine
	listeners progressListeners

	mu    sync.Mutex
	calls map[string]*imageCall
}

func newImageStore(e *engine) *imageStore {
	return &imageStore{engine: e, calls: make(map[string]*imageCall)}
}

// imageCall is one fetch of an image. It is canceled when no caller waits any longer.
type imageCall struct {
	done    chan struct{}
	err     error
	cancel  context.CancelFunc
	waiting int
}

// findImage returns an image of the engine, which fetches it first if it is missing.
//
// NotFound: no such image. PermissionDenied: the registry refuses. Unavailable: it does not answer.
// Timeout: it is too slow. Unsupported: an engine cannot load this form of an image.
func (s *imageStore) findImage(ctx context.Context, ref sandpit.Image) (imageInfo, error) {
	text := string(ref)
	if isPath(text) {
		a, err := openArchive(text)
		if err != nil {
			return imageInfo{}, err
		}
		return s.ensureImage(ctx, a.tag, func(ctx context.Context) error { return s.loadArchive(ctx, a) })
	}
	name := text
	pull := func(ctx context.Context) error {
		return noSuchImage()
	}
	if id, ok := ref.Snapshot(); ok {
		if err := id.Validate(); err != nil {
			return imageInfo{}, err
		}
		return s.ensureImage(ctx, snapshotTag(id), pull)
	}
	always := false
	if !idPattern().MatchString(text) {
		named, err := parseName(text)
		if err != nil {
			return imageInfo{}, err
		}
		name = named.String()
		_, pinned := named.(reference.Digested)
		always = s.engine.o.Pull == image.PullAlways && !pinned
		if s.engine.o.Pull != image.PullNever {
			pull = func(ctx context.Context) error { return s.pullImage(ctx, named) }
		}
	}
	if always {
		if err := s.fetchOnce(ctx, name, pull); err != nil {
			return imageInfo{}, err
		}
	}
	return s.ensureImage(ctx, name, pull)
}

var _ sandpit.ImagePreparer = (*Provider)(nil)

// PrepareImage implements sandpit.ImagePreparer.
func (p *Provider) PrepareImage(ctx context.Context, ref sandpit.Image) error {
	_, err := p.ResolveImage(ctx, "", ref)
	return err
}

// ResolveImage returns the engine's ID of an image, which the engine fetches first if it is missing.
// All users of the engine share its names and images: an ordinary owner of a server may use images
// that were fetched from the repository that it names, and those of Options.Listed. IDs, and names
// that users of the engine gave to their own images, give NotFound, and no registry is asked for
// them. The owner "" means an administrator, with the right to every image.
//
// PermissionDenied: also the path of a file, or a registry that the owner may not use. Otherwise the
// errors are those of Create about images.
func (p *Provider) ResolveImage(ctx context.Context, owner string, ref sandpit.Image) (sandpit.Image, error) {
	if owner == "" {
		if ref == "" || ref == sandpit.HostImage {
			return "", noHostImage(ref)
		}
		info, err := p.images.findImage(ctx, ref)
		return sandpit.Image(info.ID), err
	}
	named, err := p.images.checkOwners(ctx, ref)
	if err != nil {
		return "", err
	}
	info, err := p.images.inspectImage(ctx, named.String())
	found := err == nil
	if err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
		return "", err
	}
	_, pinned := named.(reference.Digested)
	always := p.o.Pull == image.PullAlways && !pinned && info.isOf(named)
	if found && !always {
		return sandpit.Image(info.ID), nil
	}
	if p.o.Pull == image.PullNever {
		return "", noSuchImage()
	}
	if err := p.o.Guard.Check(ctx, reference.Domain(named)); err != nil {
		return "", err
	}
	release, err := p.o.AcquirePull(ctx, owner)
	if err != nil {
		return "", err
	}
	defer release()
	err = p.images.fetchOnce(ctx, named.String(), func(ctx context.Context) error { return p.images.pullImage(ctx, named) })
	if err == nil {
		info, err = p.images.inspectImage(ctx, named.String())
	}
	return sandpit.Image(info.ID), err
}

// checkOwners parses the name of an image for an ordinary owner. An image that the owner may not use
// gives the same error as one that does not exist.
func (s *imageStore) checkOwners(ctx context.Context, ref sandpit.Image) (reference.Named, error) {
	text := string(ref)
	switch {
	case ref == "" || ref == sandpit.HostImage:
		return nil, noHostImage(ref)
	case isPath(text):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image %q is a file of the server's machine", shortenText(text)),
			"use an image of a registry")
	case idPattern().MatchString(text):
		return nil, noSuchImage()
	}
	named, err := parseName(text)
	if err != nil || s.isListed(named) {
		return named, err
	}
	info, err := s.inspectImage(ctx, named.String())
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return named, nil
	}
	if err == nil && !info.isOf(named) {
		err = noSuchImage()
	}
	return named, err
}

// isListed reports whether a name is in Options.Listed.
func (s *imageStore) isListed(named reference.Named) bool {
	return slices.ContainsFunc(s.engine.o.Listed, func(text string) bool {
		listed, err := parseName(text)
		return err == nil && listed.String() == named.String()
	})
}

// isOf reports whether the engine fetched the image from the repository of a name.
func (i imageInfo) isOf(named reference.Named) bool { return slices.Contains(i.fetched, named.Name()) }

// repositoriesOf returns the repositories in an engine's list of digests.
func repositoriesOf(digests []string) []string {
	var list []string
	for _, text := range digests {
		if named, err := reference.ParseNormalizedNamed(text); err == nil {
			list = append(list, named.Name())
		}
	}
	return list
}

func noSuchImage() error {
	return sandpit.Errorf(sandpit.NotFound, "image not found in the docker engine")
}

func noHostImage(ref sandpit.Image) error {
	return sandpit.Errorf(sandpit.Unsupported, "image %q: a docker engine cannot use this machine's own programs", ref)
}

// ensureImage returns the image of a name, and calls fetch if it is missing.
func (s *imageStore) ensureImage(ctx context.Context, name string, fetch func(context.Context) error) (imageInfo, error) {
	info, err := s.inspectImage(ctx, name)
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return info, err
	}
	if err := s.fetchOnce(ctx, name, fetch); err != nil {
		return imageInfo{}, err
	}
	return s.inspectImage(ctx, name)
}

// fetchOnce runs fetch, or waits for a running fetch of the same name.
func (s *imageStore) fetchOnce(ctx context.Context, name string, fetch func(context.Context) error) error {
	s.mu.Lock()
	call := s.calls[name]
	if call == nil {
		limited, cancel := s.engine.boundContext(context.Background(), s.engine.calls, s.engine.o.PullTimeout)
		call = &imageCall{done: make(chan struct{}), cancel: cancel}
		ok := s.engine.goDo(func() {
			defer cancel()
			err := fetch(limited)
			if err != nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
				err = sandpit.Errorf(sandpit.Timeout, "the image was not fetched within %s", s.engine.o.PullTimeout)
			}
			s.mu.Lock()
			call.err = err
			if s.calls[name] == call {
				delete(s.calls, name)
			}
			s.mu.Unlock()
			close(call.done)
		})
		if !ok {
			s.mu.Unlock()
			cancel()
			return errClosed
		}
		s.calls[name] = call
	}
	call.waiting++
	s.mu.Unlock()
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if call.waiting--; call.waiting == 0 {
		call.cancel()
		if s.calls[name] == call { // the next caller starts a new fetch
			delete(s.calls, name)
		}
	}
	return ctx.Err()
}

// inspectImage asks the engine for an image. NotFound: it does not have it.
func (s *imageStore) inspectImage(ctx context.Context, name string) (imageInfo, error) {
	limited, cancel := s.engine.callContext(ctx)
	defer cancel()
	res, err := s.engine.api.ImageInspect(limited, name)
	if err != nil {
		return imageInfo{}, s.engine.wrapError(ctx, "find the image", err)
	}
	info := imageInfo{ID: res.ID, Env: make(map[string]string), fetched: repositoriesOf(res.RepoDigests)}
	if c := res.Config; c != nil {
		info.User, info.WorkDir, info.Cmd, info.Entry = c.User, c.WorkingDir, c.Cmd, c.Entrypoint
		for _, one := range c.Env {
			if name, value, ok := strings.Cut(one, "="); ok && name != "" {
				info.Env[name] = value
			}
		}
	}
	if info.WorkDir != "" && !cleanAbsolute(info.WorkDir) {
		info.WorkDir = "/" + strings.Trim(info.WorkDir, "/")
	}
	return info, nil
}

// pullImage has the engine fetch an image from its registry.
func (s *imageStore) pullImage(ctx context.Context, named reference.Named) error {
	auth, err := s.registryLogin(ctx, reference.Domain(named))
	if err != nil {
		return err
	}
	res, err := s.engine.api.ImagePull(ctx, named.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		err = s.engine.wrapError(ctx, "pull", err)
		if sandpit.CodeOf(err) == sandpit.Internal { // the failure is the registry's
			err = sandpit.Errorf(sandpit.Unavailable, "%w", err)
		}
		return hintLogin(err, named)
	}
	defer res.Close()
	err = s.watchProgress(ctx, res, named.String())
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	code := sandpit.Unavailable
	if failure, ok := errors.AsType[*jsonstream.Error](err); ok {
		switch failure.Code {
		case 401, 403:
			code = sandpit.PermissionDenied
		case 404:
			code = sandpit.NotFound
		}
	}
	return hintLogin(sandpit.Errorf(code, "pull: %s", shortenText(err.Error())), named)
}

func hintLogin(err error, named reference.Named) error {
	switch sandpit.CodeOf(err) {
	case sandpit.PermissionDenied, sandpit.NotFound, sandpit.Unavailable:
		if sandpit.HintOf(err) != "" {
			return err
		}
		return sandpit.WithHint(err, "check the name; if the registry requires a login: docker login "+reference.Domain(named))
	default:
		return err
	}
}

// registryLogin returns the encoded login that the engine uses for a registry, or "".
func (s *imageStore) registryLogin(ctx context.Context, domain string) (string, error) {
	login, err := s.engine.o.Credentials(ctx, domain)
	if err != nil {
		return "", fmt.Errorf("find the login for registry %s: %w", domain, err)
	}
	if login == (image.Credential{}) {
		return "", nil
	}
	text, err := authconfig.Encode(registry.AuthConfig{
		Username: login.User, Password: login.Password, IdentityToken: login.Token, ServerAddress: domain,
	})
	if err != nil { // it may contain the password
		return "", sandpit.Errorf(sandpit.Internal, "encode the login for registry %s: failed", domain)
	}
	return text, nil
}

// maxLayers bounds the layers whose progress is tracked.
const maxLayers = 1000

// watchProgress reads the engine's messages about a pull to their end, and reports its progress.
func (s *imageStore) watchProgress(ctx context.Context, r io.Reader, name string) error {
	type layer struct{ done, total int64 }
	layers := make(map[string]layer)
	decoder := json.NewDecoder(r)
	for {
		var m jsonstream.Message
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			return ctx.Err()
		} else if err != nil {
			return err
		}
		if m.Error != nil {
			return m.Error
		}
		if m.Progress == nil || m.ID == "" || m.Progress.Total <= 0 || len(layers) >= maxLayers {
			continue
		}
		known := layers[m.ID]
		if known.total == 0 || known.total == m.Progress.Total { // otherwise it is being unpacked
			layers[m.ID] = layer{max(known.done, m.Progress.Current), m.Progress.Total}
		}
		var sum layer
		for _, l := range layers {
			sum.done += l.done
			sum.total += l.total
		}
		s.listeners.notifyListeners(name, sum.done, sum.total)
		if s.engine.o.Progress != nil {
			s.engine.o.Progress(sum.done, sum.total)
		}
	}
}
