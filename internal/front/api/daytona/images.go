package daytona

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// defaultSnapshot is the name of Daytona's own snapshot, which stands for the default image.
const defaultSnapshot = "daytonaio/sandbox"

// builtinTimeout is how long a request waits for the first build of a built-in template. It is
// less than the minute after which Daytona's clients time out, so that they get the reason.
const builtinTimeout = 45 * time.Second

// origin is what a sandbox starts from.
type origin struct {
	// saved is set if it is a snapshot of a sandbox.
	saved *sandpit.Snapshot
	// image is "" for the default image.
	image sandpit.Image
	// configured says that the configuration names the image, not the client.
	configured bool
	// build is the build of the image, if a Dockerfile was built for the request, and waits is the
	// same build if it has not ended.
	build sandpit.BuildID
	waits sandpit.TemplateBuild
}

// imageResolver finds what sandboxes start from.
type imageResolver struct {
	manager *manager.Manager
	builder *imageBuilder
}

// resolveRequest returns what a new sandbox starts from: a snapshot or template of that name or
// ID, what a Dockerfile describes, or the default image.
//
// NotFound: no such snapshot, or it belongs to another owner. Invalid: the Dockerfile.
func (t *imageResolver) resolveRequest(ctx context.Context, client api.Principal, in createRequest) (origin, error) {
	switch {
	case in.Build != nil:
		return t.builder.resolveDockerfile(ctx, client, *in.Build)
	case in.Snapshot == "" || isDefaultSnapshot(in.Snapshot):
		return origin{configured: true}, nil
	default:
		return t.resolveSnapshot(ctx, client, in.Snapshot)
	}
}

// isDefaultSnapshot reports whether a name means the default image.
func isDefaultSnapshot(name string) bool {
	name, _, _ = strings.Cut(name, ":")
	return name == defaultSnapshot
}

func (t *imageResolver) resolveSnapshot(ctx context.Context, client api.Principal, name string) (origin, error) {
	saved, err := t.manager.Snapshots().Get(ctx, client.Owner, name)
	switch {
	case err == nil:
		return origin{saved: &saved, image: sandpit.SnapshotImage(saved.ID)}, nil
	case sandpit.CodeOf(err) != sandpit.NotFound:
		return origin{}, err
	}
	for _, ref := range []string{templateName(name), name} { // the second is a tag of a template
		_, err := t.manager.Templates().Get(ctx, client.Owner, ref)
		if err == nil {
			return origin{image: sandpit.Image(sandpit.TemplatePrefix + ref)}, nil
		}
		if code := sandpit.CodeOf(err); code != sandpit.NotFound && code != sandpit.Invalid {
			return origin{}, err
		}
	}
	if !slices.Contains(t.manager.Builtins().Names(), name) {
		return origin{}, newSnapshotNotFound(name)
	}
	b, err := t.manager.Builtins().Await(ctx, name, builtinTimeout)
	switch {
	case err != nil:
		return origin{}, err
	case b.Status != sandpit.BuildReady:
		return origin{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "template %s is not ready: %s", name, b.Status), "try again in a minute")
	}
	return origin{image: sandpit.Image(sandpit.TemplatePrefix + name)}, nil
}

func newSnapshotNotFound(name string) error {
	return sandpit.Errorf(sandpit.NotFound, "Snapshot %.100q not found", name)
}

// imageBuilder builds what Dockerfiles of requests describe.
type imageBuilder struct {
	manager  *manager.Manager
	parse    func(text []byte) (sandpit.Recipe, error)
	internet bool // builds and their sandboxes reach the network
	uploads  *uploads.Store
}

// parseDockerfile converts the Dockerfile of a request.
func (b *imageBuilder) parseDockerfile(in newBuildInfo) (sandpit.Recipe, error) {
	if b.parse == nil {
		from, ok := strings.CutPrefix(strings.TrimSpace(in.Dockerfile), "FROM ")
		if !ok || strings.ContainsAny(from, " \t\r\n") {
			return sandpit.Recipe{}, sandpit.Errorf(sandpit.Invalid, "dockerfileContent: this server accepts only FROM IMAGE")
		}
		return sandpit.Recipe{From: sandpit.Image(from)}, nil
	}
	recipe, err := b.parse([]byte(in.Dockerfile))
	if err != nil {
		return recipe, refuse(http.StatusBadRequest, sandpit.CodeOf(err), "dockerfileContent: %w", err)
	}
	for i, s := range recipe.Steps {
		if s.Copy != nil && len(in.Hashes) == 0 {
			return recipe, refuse(http.StatusBadRequest, sandpit.Invalid, "dockerfileContent: %s: copies files, and the request has none", s.Where(i))
		}
	}
	return recipe, nil
}

// resolveDockerfile returns the image of a Dockerfile. One with only FROM is the image that it
// names. Others are built once for their owner, and kept as a template whose name is derived
// from the text.
func (b *imageBuilder) resolveDockerfile(ctx context.Context, client api.Principal, in newBuildInfo) (origin, error) {
	recipe, err := b.parseDockerfile(in)
	if err != nil {
		return origin{}, err
	}
	if err := b.checkFiles(client, in.Hashes); err != nil {
		return origin{}, err
	}
	if reflect.DeepEqual(recipe, sandpit.Recipe{From: recipe.From}) {
		return origin{image: recipe.From}, nil
	}
	sum := sha256.Sum256([]byte(strings.Join(append([]string{in.Dockerfile}, in.Hashes...), "\x00")))
	name := "daytona-" + hex.EncodeToString(sum[:12])
	build, err := b.findBuild(ctx, client, name)
	if err == nil && (build.ID == "" || build.Status == sandpit.BuildFailed) {
		build, err = b.startBuild(ctx, client, manager.TemplateRequest{Owner: client.Owner, Name: name}, recipe, in.Hashes)
	}
	from := origin{image: sandpit.Image(sandpit.TemplatePrefix + name), build: build.ID}
	if build.Status != sandpit.BuildReady {
		from.waits = build
	}
	return from, err
}

// findBuild returns the latest build of an owner's template; its ID is "" if no build exists.
func (b *imageBuilder) findBuild(ctx context.Context, client api.Principal, name string) (sandpit.TemplateBuild, error) {
	found, err := b.manager.Templates().Get(ctx, client.Owner, name)
	if sandpit.CodeOf(err) == sandpit.NotFound || err == nil && found.Owner != client.Owner {
		return sandpit.TemplateBuild{}, nil
	}
	if err != nil {
		return sandpit.TemplateBuild{}, err
	}
	list, err := b.manager.Builds().List(ctx, client.Owner, string(found.ID), 1)
	if err != nil || len(list) == 0 {
		return sandpit.TemplateBuild{}, err
	}
	return list[0], nil
}

// maxHashes is the maximum number of uploads for an image.
const maxHashes = 1000

// checkFiles returns an error if files of an image were not uploaded.
func (b *imageBuilder) checkFiles(client api.Principal, hashes []string) error {
	if len(hashes) > maxHashes {
		return sandpit.Errorf(sandpit.Invalid, "contextHashes: %d entries, want at most %d", len(hashes), maxHashes)
	}
	for _, hash := range hashes {
		if !uploads.IsHash(hash) {
			return sandpit.Errorf(sandpit.Invalid, "contextHashes: invalid hash %.200q", hash)
		}
		if err := b.uploads.CheckArchive(uploads.Name{Owner: client.Owner, Hash: hash}); err != nil {
			return refuse(http.StatusBadRequest, sandpit.CodeOf(err), "contextHashes: %w", err)
		}
	}
	return nil
}

// startBuild creates a template, or a further build of it, and starts the build, whose steps copy
// the files of uploads.
func (b *imageBuilder) startBuild(ctx context.Context, client api.Principal, t manager.TemplateRequest, recipe sandpit.Recipe, hashes []string) (sandpit.TemplateBuild, error) {
	recipe.Build.Network.Online = b.internet
	recipe.Network.Online = b.internet
	_, build, err := b.manager.Templates().Create(ctx, t)
	if err != nil {
		return build, err
	}
	r := manager.BuildRequest{Owner: client.Owner, Build: build.ID, Recipe: recipe, Admin: client.Admin}
	if len(hashes) > 0 {
		files, err := b.uploads.OpenFiles(client.Owner)
		if err != nil {
			return build, err
		}
		r.Files, r.Release = files.Dir(), files.Remove
		r.Prepare = func(ctx context.Context) ([]sandpit.RecipeStep, map[string]string, error) {
			return recipe.Steps, recipe.Labels, files.UnpackTogether(ctx, hashes)
		}
	}
	return build, b.manager.Builds().Start(ctx, r)
}

// buildPoll is the time between two looks at a build.
const buildPoll = 200 * time.Millisecond

// awaitBuild waits for the end of a build. Invalid: it failed.
func (b *imageBuilder) awaitBuild(ctx context.Context, client api.Principal, build sandpit.BuildID) error {
	ticker := time.NewTicker(buildPoll)
	defer ticker.Stop()
	for {
		now, err := b.manager.Builds().Get(ctx, client.Owner, build)
		switch {
		case err != nil:
			return err
		case now.Status == sandpit.BuildReady:
			return nil
		case now.Status == sandpit.BuildFailed:
			return refuse(http.StatusBadRequest, sandpit.Invalid, "build of the image failed: %s", buildFailure(now))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// buildFailure says why a build failed.
func buildFailure(b sandpit.TemplateBuild) string {
	if b.Reason.Step == "" {
		return b.Reason.Message
	}
	return b.Reason.Step + ": " + b.Reason.Message
}
