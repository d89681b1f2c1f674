package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

var (
	_ sandpit.Snapshotter    = (*Instance)(nil)
	_ sandpit.LayerReader    = (*Instance)(nil)
	_ sandpit.SnapshotKeeper = (*Provider)(nil)
)

const (
	// snapshotName is the repository of images that are snapshots.
	snapshotName = "sandpit-snapshot"
	// labelSnapshot is the label of an image with its sandpit.Snapshot as JSON.
	labelSnapshot = "dev.sandpit.snapshot"
	// noTag is the tag of an untagged image in lists of engines before 25.0.
	noTag = "<none>:<none>"
	// snapshotComment is the comment of the image of a snapshot.
	snapshotComment = "sandpit snapshot"
	// maxIndex bounds the list of layers in a saved image, in bytes.
	maxIndex = 4 << 20
)

// snapshotTag returns the name of a snapshot's image.
func snapshotTag(id sandpit.SnapshotID) string { return snapshotName + ":" + string(id) }

// Snapshot implements sandpit.Snapshotter. It commits the files to an image of the engine, whose tag
// is the snapshot's ID. Memory, mounts and directories in memory are not saved.
func (i *Instance) Snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	s, err := i.takeSnapshot(ctx, id)
	if err != nil {
		return sandpit.Snapshot{}, fmt.Errorf("snapshot sandbox %s: %w", i.b.id, err)
	}
	return s, nil
}

func (i *Instance) takeSnapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	var none sandpit.Snapshot
	if err := id.Validate(); err != nil {
		return none, err
	}
	b := i.b
	if err := b.lockInState(ctx, running, paused); err != nil {
		return none, err
	}
	defer b.unlock()
	switch _, err := b.p.images.inspectImage(ctx, snapshotTag(id)); {
	case err == nil:
		return none, sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s already exists", id)
	case sandpit.CodeOf(err) != sandpit.NotFound:
		return none, err
	}
	rec, err := b.p.records.readRecord(b.id, b.container)
	if err == nil {
		err = b.keepsFiles(ctx)
	}
	if err != nil {
		return none, err
	}
	saved := sandpit.Snapshot{ID: id, Sandbox: b.id, Spec: rec.Spec.Clone(), CreatedAt: time.Now().Round(0)}
	saved.Spec.Env = nil
	about, err := json.Marshal(saved)
	if err != nil {
		return none, err
	}
	// The original image's settings replace those of the sandbox's container. Its labels are
	// cleared, because every container from this image would inherit them.
	config := &container.Config{
		User: rec.Image.User, WorkingDir: imageDir(rec.Spec, rec.Image),
		Entrypoint: append([]string{}, rec.Image.Entry...), Cmd: append([]string{}, rec.Image.Cmd...),
		Labels: map[string]string{
			labelID: "", labelManager: b.p.o.Manager, labelSpec: "", labelAttempt: "", labelPart: "snapshot", labelSnapshot: string(about),
		},
	}
	if config.User == "" {
		config.User = "0"
	}
	b.setSaving(true)
	defer b.setSaving(false)
	b.p.snapshots.RLock()
	defer b.p.snapshots.RUnlock()
	res, err := b.p.engine.api.ContainerCommit(ctx, b.container, client.ContainerCommitOptions{
		Reference: snapshotTag(id), Comment: snapshotComment, Config: config,
	})
	if err != nil {
		return none, b.p.engine.wrapError(ctx, "commit the container", err)
	}
	limited, cancel := b.p.engine.callContext(ctx)
	defer cancel()
	img, err := b.p.engine.api.ImageInspect(limited, res.ID)
	if err != nil {
		return none, b.p.engine.wrapError(ctx, "inspect the image", err)
	}
	saved.Size = max(0, img.Size)
	return saved, nil
}

// ListSnapshots implements sandpit.SnapshotKeeper. It also removes the images of removed snapshots
// that containers still used, unless a snapshot is being taken or removed.
func (p *Provider) ListSnapshots(ctx context.Context) ([]sandpit.Snapshot, error) {
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	found, err := p.engine.api.ImageList(limited, client.ImageListOptions{
		Filters: client.Filters{}.Add("label", labelPart+"=snapshot").Add("label", labelManager+"="+p.o.Manager),
	})
	if err != nil {
		return nil, p.engine.wrapError(ctx, "list the snapshots", err)
	}
	var list []sandpit.Snapshot
	for _, img := range found.Items {
		if len(img.RepoTags) == 0 || slices.Contains(img.RepoTags, noTag) {
			p.removeUntagged(limited, img.ID)
			continue
		}
		s, err := snapshotOf(img.Labels, img.Size)
		if err == nil && slices.Contains(img.RepoTags, snapshotTag(s.ID)) {
			list = append(list, s)
		}
	}
	return list, nil
}

// removeUntagged removes the image of a removed snapshot. The engine refuses while a container uses
// it, and the next call retries, as it does while a snapshot is being taken or removed: its image has no tag
// either for a moment. An image that was built from a snapshot has the same labels, but not the comment.
func (p *Provider) removeUntagged(ctx context.Context, image string) {
	if !p.snapshots.TryLock() {
		return
	}
	defer p.snapshots.Unlock()
	img, err := p.engine.api.ImageInspect(ctx, image)
	if err != nil || img.Comment != snapshotComment || len(img.RepoTags) > 0 {
		return
	}
	_, _ = p.engine.api.ImageRemove(ctx, image, client.ImageRemoveOptions{PruneChildren: true})
}

// snapshotOf decodes a snapshot from the labels of an image, which are untrusted.
func snapshotOf(labels map[string]string, size int64) (sandpit.Snapshot, error) {
	var s sandpit.Snapshot
	if err := json.Unmarshal([]byte(labels[labelSnapshot]), &s); err != nil {
		return s, sandpit.Errorf(sandpit.Invalid, "decode label %s: %w", labelSnapshot, err)
	}
	s.Size = max(0, size)
	return s, s.ID.Validate()
}

// findSnapshot returns a snapshot. NotFound: it does not exist.
func (p *Provider) findSnapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	if err := id.Validate(); err != nil {
		return sandpit.Snapshot{}, sandpit.Errorf(sandpit.NotFound, "%w", err)
	}
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	img, err := p.engine.api.ImageInspect(limited, snapshotTag(id))
	if err != nil {
		return sandpit.Snapshot{}, p.engine.wrapError(ctx, "find snapshot "+string(id), err)
	}
	// A snapshot determines mounts of the machine's directories. An image from elsewhere must not
	// choose them, whatever its name.
	if img.Config == nil || img.Config.Labels[labelPart] != "snapshot" || img.Config.Labels[labelManager] != p.o.Manager {
		return sandpit.Snapshot{}, sandpit.Errorf(sandpit.NotFound, "image %s is not a snapshot of this provider", snapshotTag(id))
	}
	s, err := snapshotOf(img.Config.Labels, img.Size)
	if err == nil && s.ID != id {
		err = sandpit.Errorf(sandpit.NotFound, "image %s is another snapshot", snapshotTag(id))
	}
	return s, err
}

// RemoveSnapshot implements sandpit.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	p.snapshots.RLock()
	defer p.snapshots.RUnlock()
	// Containers of the snapshot keep its layers, which only lose their name.
	_, err := p.engine.api.ImageRemove(limited, snapshotTag(id), client.ImageRemoveOptions{Force: true, PruneChildren: true})
	if err = p.engine.wrapError(ctx, "remove snapshot "+string(id), err); sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	return err
}

// specOfSnapshot returns the spec of a sandbox with the fields that its snapshot determines.
// Invalid: the spec contradicts the snapshot.
func (p *Provider) specOfSnapshot(ctx context.Context, spec sandpit.Spec) (sandpit.Spec, error) {
	id, ok := spec.Image.Snapshot()
	if !ok {
		return spec, nil
	}
	saved, err := p.findSnapshot(ctx, id)
	if err != nil {
		return spec, err
	}
	made, was := spec.Clone(), saved.Spec
	if len(spec.Mounts) > 0 && !slices.Equal(spec.Mounts, was.Mounts) {
		return spec, sandpit.Errorf(sandpit.Invalid, "snapshot %s: cannot change mounts", id)
	}
	if spec.Resources != (sandpit.Resources{}) && spec.Resources != was.Resources {
		return spec, sandpit.Errorf(sandpit.Invalid, "snapshot %s: cannot change limits", id)
	}
	made.Mounts, made.Resources = slices.Clone(was.Mounts), was.Resources
	switch {
	case spec.Network.Equal(sandpit.NetworkPolicy{}):
		made.Network = was.Network.Clone()
	case spec.Network.Online != was.Network.Online:
		return spec, sandpit.Errorf(sandpit.Invalid, "snapshot %s: cannot change whether it is online", id)
	}
	return made, nil
}

// ReadSnapshotLayer implements sandpit.SnapshotKeeper.
func (p *Provider) ReadSnapshotLayer(ctx context.Context, id sandpit.SnapshotID) (io.ReadCloser, error) {
	if _, err := p.findSnapshot(ctx, id); err != nil {
		return nil, err
	}
	name, err := p.lastLayer(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read the layer of snapshot %s: %w", id, err)
	}
	saved, err := p.engine.api.ImageSave(ctx, []string{snapshotTag(id)})
	if err != nil {
		return nil, p.engine.wrapError(ctx, "read the layer of snapshot "+string(id), err)
	}
	for r := tar.NewReader(saved); ; {
		h, err := r.Next()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read the layer of snapshot %s: %w", id, err), saved.Close())
		}
		if path.Clean(h.Name) == name {
			return layerReader{r, saved}, nil
		}
	}
}

// layerReader reads one layer of a saved image.
type layerReader struct {
	io.Reader
	io.Closer
}

// ReadLayer implements sandpit.LayerReader. It reads a temporary snapshot, which closing the reader
// removes. The manager removes one that a crash left, because it has no row for it.
func (i *Instance) ReadLayer(ctx context.Context) (io.ReadCloser, error) {
	saved, err := i.Snapshot(ctx, sandpit.NewSnapshotID())
	if err != nil {
		return nil, err
	}
	brief := briefImage{p: i.b.p, id: saved.ID, ctx: context.WithoutCancel(ctx)}
	layer, err := i.b.p.ReadSnapshotLayer(ctx, saved.ID)
	if err != nil {
		return nil, errors.Join(err, brief.Close())
	}
	brief.layer = layer
	return layerReader{layer, brief}, nil
}

// briefImage is the temporary snapshot of one reader.
type briefImage struct {
	p     *Provider
	id    sandpit.SnapshotID
	layer io.Closer
	ctx   context.Context //nolint:containedctx // for Close, which has none
}

// Close implements io.Closer.
func (b briefImage) Close() error {
	var err error
	if b.layer != nil {
		err = b.layer.Close()
	}
	return errors.Join(err, b.p.RemoveSnapshot(b.ctx, b.id))
}

// lastLayer returns the path of the sandbox's own layer in the saved image.
func (p *Provider) lastLayer(ctx context.Context, id sandpit.SnapshotID) (string, error) {
	saved, err := p.engine.api.ImageSave(ctx, []string{snapshotTag(id)})
	if err != nil {
		return "", p.engine.wrapError(ctx, "save the image", err)
	}
	defer saved.Close()
	for r := tar.NewReader(saved); ; {
		h, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("find the list of layers: %w", err)
		}
		if path.Clean(h.Name) != "manifest.json" {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(r, maxIndex))
		if err != nil {
			return "", err
		}
		var images []struct{ Layers []string }
		if err := json.NewDecoder(bytes.NewReader(data)).Decode(&images); err != nil {
			return "", fmt.Errorf("decode the list of layers: %w", err)
		}
		if len(images) != 1 || len(images[0].Layers) == 0 {
			return "", sandpit.Errorf(sandpit.Internal, "the image has no layers")
		}
		return path.Clean(images[0].Layers[len(images[0].Layers)-1]), nil
	}
}

// ExportSnapshot implements sandpit.SnapshotKeeper. It returns Unsupported, because the engine has
// its own command for it.
func (p *Provider) ExportSnapshot(ctx context.Context, id sandpit.SnapshotID, _ io.Writer) error {
	if _, err := p.findSnapshot(ctx, id); err != nil {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "export snapshot: snapshots of a docker engine are images of the engine"),
		"docker save -o FILE "+snapshotTag(id))
}

// ImportSnapshot implements sandpit.SnapshotKeeper. It returns Unsupported, because loading could
// replace any image of the engine.
func (p *Provider) ImportSnapshot(_ context.Context, id sandpit.SnapshotID, _ io.Reader) (sandpit.Snapshot, error) {
	if err := id.Validate(); err != nil {
		return sandpit.Snapshot{}, err
	}
	return sandpit.Snapshot{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "import snapshot: not supported with a docker engine"),
		"docker load -i FILE, and create sandboxes from that image")
}
