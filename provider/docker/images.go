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

// imageInfo is what is used of an image's description.
type imageInfo struct {
	ID      string            `json:"id"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	WorkDir string            `json:"work_dir,omitempty"`
	Cmd     []string          `json:"cmd,omitempty"`
	Entry   []string          `json:"entrypoint,omitempty"`

	fetched []string // repositories that the engine knows it has come from
}

// imageStore fetches each image once, for however many wait for it.
type imageStore struct {
	mu    sync.Mutex
	calls map[string]*imageCall
}

// imageCall is one image being fetched. It goes on as long as somebody waits.
type imageCall struct {
	done    chan struct{}
	err     error
	cancel  context.CancelFunc
	waiting int
}

// findImage returns an image of the engine, which fetches it first if need be.
//
// NotFound: no such image. PermissionDenied: the registry refuses. Unavailable: it
// does not answer. Timeout: it is too slow. Unsupported: no form of an image that
// an engine takes.
func (s *imageStore) findImage(ctx context.Context, p *Provider, ref sandpit.Image) (imageInfo, error) {
	text := string(ref)
	if isPath(text) {
		a, err := openArchive(text)
		if err != nil {
			return imageInfo{}, err
		}
		return s.ensureImage(ctx, p, a.tag, func(ctx context.Context) error { return p.loadArchive(ctx, a) })
	}
	name := text
	pull := func(ctx context.Context) error {
		return noSuchImage()
	}
	if id, ok := ref.Snapshot(); ok {
		if err := id.Validate(); err != nil {
			return imageInfo{}, err
		}
		return s.ensureImage(ctx, p, snapshotTag(id), pull)
	}
	always := false
	if !idPattern.MatchString(text) {
		named, err := parseName(text)
		if err != nil {
			return imageInfo{}, err
		}
		name = named.String()
		_, pinned := named.(reference.Digested)
		always = p.o.Pull == image.PullAlways && !pinned
		if p.o.Pull != image.PullNever {
			pull = func(ctx context.Context) error { return p.pullImage(ctx, named) }
		}
	}
	if always {
		if err := s.fetchOnce(ctx, p, name, pull); err != nil {
			return imageInfo{}, err
		}
	}
	return s.ensureImage(ctx, p, name, pull)
}

var _ sandpit.ImagePreparer = (*Provider)(nil)

// PrepareImage implements sandpit.ImagePreparer.
func (p *Provider) PrepareImage(ctx context.Context, ref sandpit.Image) error {
	_, err := p.EngineImage(ctx, ref)
	return err
}

// PrepareImageFor is PrepareImage for an ordinary owner of a server, and returns what the
// engine calls the image whatever its names come to mean. The engine has one set of names
// and images for all its users: an owner may use images that have come from the repository
// that it names, and those of Options.Listed. IDs, and names that users of the engine have
// given to images of their own, give NotFound, and no registry replaces what such a name
// means.
//
// PermissionDenied: also the path of a file, or a registry that the owner may not have
// asked.
func (p *Provider) PrepareImageFor(ctx context.Context, owner string, ref sandpit.Image) (sandpit.Image, error) {
	named, err := p.checkOwners(ctx, ref)
	if err != nil {
		return "", err
	}
	info, err := p.imageInfo(ctx, named.String())
	there := err == nil
	if err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
		return "", err
	}
	_, pinned := named.(reference.Digested)
	always := p.o.Pull == image.PullAlways && !pinned && info.isOf(named)
	if there && !always {
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
	err = p.images.fetchOnce(ctx, p, named.String(), func(ctx context.Context) error { return p.pullImage(ctx, named) })
	if err == nil {
		info, err = p.imageInfo(ctx, named.String())
	}
	return sandpit.Image(info.ID), err
}

// checkOwners refuses what an ordinary owner may not name, as if it were not there.
func (p *Provider) checkOwners(ctx context.Context, ref sandpit.Image) (reference.Named, error) {
	text := string(ref)
	switch {
	case ref == "" || ref == sandpit.HostImage:
		return nil, noHostImage(ref)
	case isPath(text):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image %s is a file of the server's machine", shortenText(text)),
			"name an image of a registry")
	case idPattern.MatchString(text):
		return nil, noSuchImage()
	}
	named, err := parseName(text)
	if err != nil || p.isListed(named) {
		return named, err
	}
	info, err := p.imageInfo(ctx, named.String())
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return named, nil
	}
	if err == nil && !info.isOf(named) {
		err = noSuchImage()
	}
	return named, err
}

// isListed reports whether a name is one of Options.Listed.
func (p *Provider) isListed(named reference.Named) bool {
	return slices.ContainsFunc(p.o.Listed, func(text string) bool {
		listed, err := parseName(text)
		return err == nil && listed.String() == named.String()
	})
}

// isOf reports whether an image has come from the repository that a name is of.
func (i imageInfo) isOf(named reference.Named) bool { return slices.Contains(i.fetched, named.Name()) }

// repositoriesOf returns those that an engine's list of digests names.
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
	return sandpit.Errorf(sandpit.Unsupported, "image %q: a docker engine does not have this machine's own programs", ref)
}

// EngineImage returns what the engine calls an image whatever its names come to mean. It is
// fetched first, if need be.
//
// The errors are those of Create about images.
func (p *Provider) EngineImage(ctx context.Context, ref sandpit.Image) (sandpit.Image, error) {
	if ref == "" || ref == sandpit.HostImage {
		return "", noHostImage(ref)
	}
	info, err := p.images.findImage(ctx, p, ref)
	return sandpit.Image(info.ID), err
}

// ensureImage returns the image of that name, and has fetch get it if there is none.
func (s *imageStore) ensureImage(ctx context.Context, p *Provider, name string, fetch func(context.Context) error) (imageInfo, error) {
	info, err := p.imageInfo(ctx, name)
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return info, err
	}
	if err := s.fetchOnce(ctx, p, name, fetch); err != nil {
		return imageInfo{}, err
	}
	return p.imageInfo(ctx, name)
}

// fetchOnce runs fetch, or waits for somebody else's of the same name.
func (s *imageStore) fetchOnce(ctx context.Context, p *Provider, name string, fetch func(context.Context) error) error {
	s.mu.Lock()
	call := s.calls[name]
	if call == nil {
		limited, cancel := p.boundContext(context.Background(), p.calls, p.o.PullTimeout)
		call = &imageCall{done: make(chan struct{}), cancel: cancel}
		ok := p.goDo(func() {
			defer cancel()
			err := fetch(limited)
			if err != nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
				err = sandpit.Errorf(sandpit.Timeout, "it did not come within %s", p.o.PullTimeout)
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
		if s.calls[name] == call { // whoever comes now begins anew
			delete(s.calls, name)
		}
	}
	return ctx.Err()
}

// imageInfo asks the engine for an image. NotFound.
func (p *Provider) imageInfo(ctx context.Context, name string) (imageInfo, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.ImageInspect(limited, name)
	if err != nil {
		return imageInfo{}, p.engineError(ctx, "look for the image", err)
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
func (p *Provider) pullImage(ctx context.Context, named reference.Named) error {
	auth, err := p.registryLogin(ctx, reference.Domain(named))
	if err != nil {
		return err
	}
	res, err := p.api.ImagePull(ctx, named.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		err = p.engineError(ctx, "pull", err)
		if sandpit.CodeOf(err) == sandpit.Internal { // it is the registry's, whatever the engine makes of it
			err = sandpit.Errorf(sandpit.Unavailable, "%w", err)
		}
		return hintLogin(err, named)
	}
	defer res.Close()
	err = p.watchProgress(ctx, res, named.String())
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	code := sandpit.Unavailable
	if told, ok := errors.AsType[*jsonstream.Error](err); ok {
		switch told.Code {
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
		return sandpit.WithHint(err, "see that the name is right; if the registry wants a login: docker login "+reference.Domain(named))
	default:
		return err
	}
}

// registryLogin is what the engine shall tell a registry.
func (p *Provider) registryLogin(ctx context.Context, domain string) (string, error) {
	who, err := p.o.Credentials(ctx, domain)
	if err != nil {
		return "", fmt.Errorf("find the login for registry %s: %w", domain, err)
	}
	if who == (image.Credential{}) {
		return "", nil
	}
	text, err := authconfig.Encode(registry.AuthConfig{
		Username: who.User, Password: who.Password, IdentityToken: who.Token, ServerAddress: domain,
	})
	if err != nil { // it could repeat the password
		return "", sandpit.Errorf(sandpit.Internal, "the login for registry %s cannot be encoded", domain)
	}
	return text, nil
}

// maxLayers bounds what is remembered of a pull.
const maxLayers = 1000

// watchProgress reads the engine's messages to their end.
func (p *Provider) watchProgress(ctx context.Context, r io.Reader, name string) error {
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
		if known.total == 0 || known.total == m.Progress.Total { // else it is being unpacked
			layers[m.ID] = layer{max(known.done, m.Progress.Current), m.Progress.Total}
		}
		var sum layer
		for _, l := range layers {
			sum.done += l.done
			sum.total += l.total
		}
		p.hearers.notifyListeners(name, sum.done, sum.total)
		if p.o.Progress != nil {
			p.o.Progress(sum.done, sum.total)
		}
	}
}
