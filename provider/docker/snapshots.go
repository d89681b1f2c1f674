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
	// labelSnapshot is what is known of a snapshot, as JSON, on its image.
	labelSnapshot = "dev.sandpit.snapshot"
	// noTag is what engines before 25.0 list as the tag of an image that has none.
	noTag = "<none>:<none>"
	// snapshotComment is what such an image says of itself.
	snapshotComment = "sandpit snapshot"
	// maxIndex bounds the lists in what an engine gives out as an image, in bytes.
	maxIndex = 4 << 20
)

// snapshotTag names the image that a snapshot is.
func snapshotTag(id sandpit.SnapshotID) string { return snapshotName + ":" + string(id) }

// Snapshot implements sandpit.Snapshotter: the files become an image of the engine,
// whose tag is the snapshot's ID. Memory is not kept, nor are mounts and what is in
// memory.
func (i *Instance) Snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	s, err := i.takeSnapshot(ctx, id)
	if err != nil {
		return sandpit.Snapshot{}, fmt.Errorf("save sandbox %s: %w", i.b.id, err)
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
	switch _, err := b.p.imageInfo(ctx, snapshotTag(id)); {
	case err == nil:
		return none, sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s exists already", id)
	case sandpit.CodeOf(err) != sandpit.NotFound:
		return none, err
	}
	rec, err := b.p.readRecord(b.id, b.container)
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
	// The image's own settings, in place of those that make it a sandbox. Labels
	// that are left would make every container from it one of ours.
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
	res, err := b.p.api.ContainerCommit(ctx, b.container, client.ContainerCommitOptions{
		Reference: snapshotTag(id), Comment: snapshotComment, Config: config,
	})
	if err != nil {
		return none, b.p.engineError(ctx, "commit the container", err)
	}
	limited, cancel := b.p.callContext(ctx)
	defer cancel()
	img, err := b.p.api.ImageInspect(limited, res.ID)
	if err != nil {
		return none, b.p.engineError(ctx, "look at the image", err)
	}
	saved.Size = max(0, img.Size)
	return saved, nil
}

// ListSnapshots implements sandpit.SnapshotKeeper. It also removes images of snapshots that
// were removed before the last of their containers.
func (p *Provider) ListSnapshots(ctx context.Context) ([]sandpit.Snapshot, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	found, err := p.api.ImageList(limited, client.ImageListOptions{
		Filters: client.Filters{}.Add("label", labelPart+"=snapshot").Add("label", labelManager+"="+p.o.Manager),
	})
	if err != nil {
		return nil, p.engineError(ctx, "list the snapshots", err)
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

// removeUntagged removes the image of a snapshot that was removed while containers of it
// were there, which keep it. The engine refuses as long as there is one, and then it is
// tried the next time. What somebody has built on a snapshot has its labels, too, but not
// its comment.
func (p *Provider) removeUntagged(ctx context.Context, image string) {
	img, err := p.api.ImageInspect(ctx, image)
	if err != nil || img.Comment != snapshotComment {
		return
	}
	_, _ = p.api.ImageRemove(ctx, image, client.ImageRemoveOptions{PruneChildren: true})
}

// snapshotOf reads what is known of a snapshot. Anybody can put labels on images.
func snapshotOf(labels map[string]string, size int64) (sandpit.Snapshot, error) {
	var s sandpit.Snapshot
	if err := json.Unmarshal([]byte(labels[labelSnapshot]), &s); err != nil {
		return s, sandpit.Errorf(sandpit.Invalid, "its label %s cannot be read: %w", labelSnapshot, err)
	}
	s.Size = max(0, size)
	return s, s.ID.Validate()
}

// findSnapshot returns a snapshot. NotFound.
func (p *Provider) findSnapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	if err := id.Validate(); err != nil {
		return sandpit.Snapshot{}, sandpit.Errorf(sandpit.NotFound, "there is no %w", err)
	}
	limited, cancel := p.callContext(ctx)
	defer cancel()
	img, err := p.api.ImageInspect(limited, snapshotTag(id))
	if err != nil {
		return sandpit.Snapshot{}, p.engineError(ctx, "look for snapshot "+string(id), err)
	}
	// What a snapshot fixes are directories of the machine, too. An image that was loaded
	// from elsewhere must not choose them, whatever it is called.
	if img.Config == nil || img.Config.Labels[labelPart] != "snapshot" || img.Config.Labels[labelManager] != p.o.Manager {
		return sandpit.Snapshot{}, sandpit.Errorf(sandpit.NotFound, "image %s is no snapshot that was made here", snapshotTag(id))
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
	limited, cancel := p.callContext(ctx)
	defer cancel()
	// Containers that were made of it keep the layers, which only lose their name.
	_, err := p.api.ImageRemove(limited, snapshotTag(id), client.ImageRemoveOptions{Force: true, PruneChildren: true})
	if err = p.engineError(ctx, "remove snapshot "+string(id), err); sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	return err
}

// specOfSnapshot is what a sandbox gets that is made of a snapshot. Invalid: what is fixed by it
// differs.
func (p *Provider) specOfSnapshot(ctx context.Context, spec sandpit.Spec) (sandpit.Spec, error) {
	id, ok := spec.Image.Snapshot()
	if !ok {
		return spec, nil
	}
	from, err := p.findSnapshot(ctx, id)
	if err != nil {
		return spec, err
	}
	made, was := spec.Clone(), from.Spec
	if len(spec.Mounts) > 0 && !slices.Equal(spec.Mounts, was.Mounts) {
		return spec, sandpit.Errorf(sandpit.Invalid, "snapshot %s: its mounts cannot be changed", id)
	}
	if spec.Resources != (sandpit.Resources{}) && spec.Resources != was.Resources {
		return spec, sandpit.Errorf(sandpit.Invalid, "snapshot %s: its limits cannot be changed", id)
	}
	made.Mounts, made.Resources = slices.Clone(was.Mounts), was.Resources
	switch {
	case spec.Network.Equal(sandpit.NetworkPolicy{}):
		made.Network = was.Network.Clone()
	case spec.Network.Online != was.Network.Online:
		return spec, sandpit.Errorf(sandpit.Invalid, "snapshot %s: whether it is online cannot be changed", id)
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
	saved, err := p.api.ImageSave(ctx, []string{snapshotTag(id)})
	if err != nil {
		return nil, p.engineError(ctx, "read the layer of snapshot "+string(id), err)
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

// layerReader is one file of an image that an engine gives out.
type layerReader struct {
	io.Reader
	io.Closer
}

// ReadLayer implements sandpit.LayerReader: it reads a snapshot that is removed with the
// reader. One that a crash leaves has no row of a manager, which removes it then.
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

// briefImage is a snapshot that is there for one reader.
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

// lastLayer returns where the layer is that was written by the sandbox.
func (p *Provider) lastLayer(ctx context.Context, id sandpit.SnapshotID) (string, error) {
	saved, err := p.api.ImageSave(ctx, []string{snapshotTag(id)})
	if err != nil {
		return "", p.engineError(ctx, "save the image", err)
	}
	defer saved.Close()
	for r := tar.NewReader(saved); ; {
		h, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("it has no list of layers: %w", err)
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
			return "", fmt.Errorf("its list of layers cannot be read: %w", err)
		}
		if len(images) != 1 || len(images[0].Layers) == 0 {
			return "", sandpit.Errorf(sandpit.Internal, "it has no layers")
		}
		return path.Clean(images[0].Layers[len(images[0].Layers)-1]), nil
	}
}

// ExportSnapshot implements sandpit.SnapshotKeeper: it is Unsupported, as the engine has a
// way of its own.
func (p *Provider) ExportSnapshot(ctx context.Context, id sandpit.SnapshotID, _ io.Writer) error {
	if _, err := p.findSnapshot(ctx, id); err != nil {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "snapshots of a docker engine are images, and not exported by sandpit"),
		"docker save -o FILE "+snapshotTag(id))
}

// ImportSnapshot implements sandpit.SnapshotKeeper: it is Unsupported. What an engine loads
// may replace any of its images.
func (p *Provider) ImportSnapshot(_ context.Context, id sandpit.SnapshotID, _ io.Reader) (sandpit.Snapshot, error) {
	if err := id.Validate(); err != nil {
		return sandpit.Snapshot{}, err
	}
	return sandpit.Snapshot{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "a docker engine takes no snapshots from elsewhere"),
		"docker load -i FILE, and make sandboxes of that image")
}
