package manager

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Images decides which images the owners of a server may use, and prepares them. All methods may be
// called concurrently.
type Images interface {
	// PrepareImage returns when a provider can create sandboxes from an image without fetching
	// anything. It may wait long, for other requests and for a registry.
	//
	// NotFound: there is no such image, or the owner may not use it. Exhausted: there is no
	// room for it. Otherwise as sandpit.Provider.Create.
	PrepareImage(ctx context.Context, r ImageRequest) (PreparedImage, error)
}

// ImageRequest asks for an image to be prepared.
type ImageRequest struct {
	// Provider is the name of the sandboxes' provider.
	Provider string
	// Image is the name in a request or in the configuration.
	Image sandpit.Image
	// Owner is the owner of the sandboxes.
	Owner string
	// Admin reports whether an administrator, the configuration or the server itself names the
	// image: then every image can be used.
	Admin bool
	// Again reports whether the sandbox existed before: then nothing is fetched. Prepared is what
	// PrepareImage returned then, which takes precedence over Image; "" if that is unknown.
	Again    bool
	Prepared sandpit.Image
}

// PreparedImage is an image that is ready.
type PreparedImage struct {
	// Image is the image for the provider. Its content never changes.
	Image sandpit.Image
	// Release allows the image to be removed. It is called once.
	Release func()
}

// prepareImage returns a request whose image is ready, and the time. The time that fetching the
// image takes does not count for the lease. The caller calls release.
func (cr *creator) prepareImage(ctx context.Context, r CreateRequest, now time.Time) (_ CreateRequest, later time.Time, release func(), err error) {
	if _, saved := r.Spec.Image.Snapshot(); cr.o.Images == nil || saved {
		return r, now, func() {}, nil
	}
	ctx, cancel := cr.core.ops.join(ctx)
	defer cancel()
	image, err := cr.o.Images.PrepareImage(ctx, ImageRequest{Provider: r.Provider, Image: r.Spec.Image, Owner: r.Owner, Admin: r.isTrusted()})
	if err != nil {
		return r, now, nil, blameProvider(causeOf(ctx, err))
	}
	r.prepared = image.Image
	if later, err = cr.wall.now(ctx); err != nil {
		image.Release()
		return r, now, nil, err
	}
	if took := later.Sub(now); took >= time.Second {
		if now = later; !r.Lease.Deadline.IsZero() {
			r.Lease.Deadline = queue.Millis(r.Lease.Deadline.Add(took))
		}
	}
	return r, now, image.Release, nil
}

// isTrusted reports whether an administrator, the configuration or the manager names the image of a
// request: they may use every image.
func (r CreateRequest) isTrusted() bool { return r.Admin || r.Configured || r.trusted }

// prepareImageAgain returns the row of a sandbox that is recreated, with its image ready. Nothing
// is fetched: few workers recreate sandboxes, and all owners need them.
func (cr *creator) prepareImageAgain(ctx context.Context, row store.Row) (store.Row, func(), error) {
	if _, saved := row.Spec.Image.Snapshot(); cr.o.Images == nil || saved {
		return row, func() {}, nil
	}
	image, err := cr.o.Images.PrepareImage(ctx, ImageRequest{
		Provider: row.Provider, Image: row.Spec.Image, Owner: row.Lease.Owner, Admin: row.Admin, Again: true, Prepared: row.Prepared,
	})
	if err != nil {
		return row, nil, err
	}
	row.Prepared = image.Image
	return row, image.Release, nil
}
