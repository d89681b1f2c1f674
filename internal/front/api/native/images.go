package native

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const pathImages = wire.Prefix + "/images"

type imagesOut struct {
	Body wire.Page[wire.Image]
}

type prePullsOut struct {
	Body wire.Page[wire.PrePull]
}

type pullIn struct {
	Body wire.Pull
}

type imagesIn struct {
	Provider string `query:"provider" maxLength:"64" doc:"The provider whose images to list; docker has images of its own. Default: the server's provider."`
}

type imageIn struct {
	Provider string `query:"provider" maxLength:"64" doc:"The provider of the image. Default: the server's provider."`
	ID       string `path:"id" maxLength:"200" doc:"ID or name of the image."`
}

// imageHandlers serve the cache of images.
type imageHandlers struct {
	images   Images // nil: the server has none
	prePulls func() []wire.PrePull
	access   access
	log      *slog.Logger
}

// addOperations adds the operations on images.
func (h *imageHandlers) addOperations(r *registrar) {
	op := newOperation(http.MethodGet, pathImages, "listImages", "List the images of the server's cache")
	op.Description = "Lists the images that have a name of the client or a name that all owners share. Administrators see all images."
	addOperation(r, op,
		func(ctx context.Context, in *imagesIn) (*imagesOut, error) {
			if err := h.checkImages(); err != nil {
				return nil, err
			}
			p, err := api.PrincipalOf(ctx)
			if err != nil {
				return nil, err
			}
			list, err := h.images.List(ctx, p, in.Provider)
			return &imagesOut{toPage(list, len(list), func(wire.Image) string { return "" })}, err
		})
	addOperation(r, newOperation(http.MethodGet, pathImages+"/pre-pull", "listPrePulls", "List the images that the server fetches when it starts"), h.listPrePulls)
	op = newOperation(http.MethodPost, pathImages+"/pull", "pullImage", "Fetch an image from a registry")
	op.Description = "Events: progress, with the number of bytes done and in total; then either result, with the image, or error, with a problem."
	addStream(r, op, h.beginPull)
	op = newOperation(http.MethodDelete, pathImages+"/{id}", "deleteImage", "Remove an image from the cache")
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *imageIn) (*struct{}, error) {
		if err := h.access.requireAdmin(ctx, "delete an image"); err != nil {
			return nil, err
		}
		err := h.checkImages()
		if err == nil {
			err = h.images.Remove(ctx, in.Provider, in.ID)
		}
		h.access.reportAction(ctx, "delete an image", map[string]string{"image": in.ID}, err)
		return nil, err
	})
}

func (h *imageHandlers) listPrePulls(ctx context.Context, _ *struct{}) (*prePullsOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	list := []wire.PrePull{}
	if h.prePulls != nil {
		list = append(list, h.prePulls()...)
	}
	for i := range list {
		if !p.Admin {
			list[i].Error = ""
		}
	}
	return &prePullsOut{wire.Page[wire.PrePull]{Items: list}}, nil
}

func (h *imageHandlers) checkImages() error {
	if h.images == nil {
		return sandpit.Errorf(sandpit.Unsupported, "this server has no image cache")
	}
	return nil
}

// progressEvery is the interval of progress events.
const progressEvery = 250 * time.Millisecond

func (h *imageHandlers) beginPull(ctx context.Context, in *pullIn) (func(*http.Request, *api.Stream), error) {
	if err := h.checkImages(); err != nil {
		return nil, err
	}
	if image.IsPath(in.Body.Name) || in.Body.Name == string(sandpit.HostImage) {
		return nil, sandpit.Errorf(sandpit.Invalid, "image %.100q: want an image of a registry", in.Body.Name)
	}
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	return func(r *http.Request, st *api.Stream) {
		err := h.pullImage(r.Context(), p, in.Body, st)
		h.access.reportAction(ctx, "pull", map[string]string{"image": in.Body.Name}, err)
		if err == nil {
			return
		}
		if err := st.Fail(r, err); err != nil {
			h.log.DebugContext(r.Context(), "api: cannot send the error that ends an event stream", slog.Any("error", err))
		}
	}, nil
}

// pullImage fetches an image and sends progress. It ends when the client disconnects.
func (h *imageHandlers) pullImage(ctx context.Context, client api.Principal, p wire.Pull, st *api.Stream) error {
	type result struct {
		image wire.Image
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	latest := make(chan wire.Progress, 1)
	done := make(chan result)
	go func() { // ends with the pull; the code below waits for it
		r := result{err: sandpit.Errorf(sandpit.Internal, "internal error of the server")}
		defer func() {
			if p := recover(); p != nil {
				h.log.ErrorContext(ctx, "api: image pull panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			}
			done <- r
		}()
		r.image, r.err = h.images.Pull(ctx, client, p, func(p wire.Progress) {
			select { // only the latest progress is sent
			case <-latest:
			default:
			}
			latest <- p
		})
	}()
	tick, silent := time.NewTicker(progressEvery), time.Now()
	defer tick.Stop()
	for {
		var err error
		select {
		case r := <-done:
			if r.err != nil {
				return r.err
			}
			return st.Send("result", "", r.image)
		case <-tick.C:
			select {
			case now := <-latest:
				err, silent = st.Send("progress", "", now), time.Now()
			default:
				if time.Since(silent) >= api.HeartbeatEvery {
					err, silent = st.Beat(), time.Now()
				}
			}
		}
		if err != nil {
			cancel()
			<-done
			return err
		}
	}
}
