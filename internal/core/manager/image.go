package manager

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Images decides which images the owners of a server may use, and makes them ready. All
// methods may be called concurrently.
type Images interface {
	// PrepareImage returns when a provider can make sandboxes of an image without fetching
	// anything. It may wait long: for its turn, and for a registry.
	//
	// NotFound: there is no such image, or the owner may not use it. Exhausted: there is no
	// room for it. Otherwise as sandpit.Provider.Create.
	PrepareImage(ctx context.Context, r ImageRequest) (PreparedImage, error)
}

// ImageRequest asks for an image to be made ready.
type ImageRequest struct {
	// Provider makes the sandboxes.
	Provider string
	// Image is what a request, or the configuration, calls it.
	Image sandpit.Image
	// Owner is whose sandboxes they are.
	Owner string
	// Admin says that an administrator, the configuration or the server itself names the
	// image: every image can be used.
	Admin bool
	// Again says that the sandbox existed before: nothing is fetched. Prepared is what
	// PrepareImage returned then, which counts before Image; "" if that is not known.
	Again    bool
	Prepared sandpit.Image
}

// PreparedImage is an image that is ready.
type PreparedImage struct {
	// Image is what the provider is given. It means the same content for ever.
	Image sandpit.Image
	// Release ends the hold, up to which the image stays ready. It is called once.
	Release func()
}

// prepareImage returns a request whose image is ready, and the time. The sandbox does not
// live while its image is fetched: its deadline moves. The caller calls release.
func (cr *creator) prepareImage(ctx context.Context, r CreateRequest, now time.Time) (_ CreateRequest, later time.Time, release func(), err error) {
	if _, saved := r.Spec.Image.Snapshot(); cr.o.Images == nil || saved {
		return r, now, func() {}, nil
	}
	ctx, cancel := cr.core.ops.join(ctx)
	defer cancel()
	image, err := cr.o.Images.PrepareImage(ctx, ImageRequest{Provider: r.Provider, Image: r.Spec.Image, Owner: r.Owner, Admin: r.isTrusted()})
	if err != nil {
		return r, now, nil, causeOf(ctx, err)
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

// isTrusted reports whether an administrator, the configuration or the manager names the
// image of a request: they may use every image.
func (r CreateRequest) isTrusted() bool { return r.Admin || r.Configured || r.trusted }

// prepareImageAgain returns the row of a sandbox that is created again, with its image ready.
// Nothing is fetched: few workers create sandboxes again, and all owners need them.
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
