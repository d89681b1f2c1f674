package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Images manages the images on the server.
type Images struct{ client *Client }

// List returns the images for a provider's sandboxes; "" is the server's default provider. Those
// of docker are in its engine, the others in the server's image cache.
func (g Images) List(ctx context.Context, provider string) ([]api.Image, error) {
	page, err := getJSON[wire.Page[api.Image]](ctx, g.client, apiPath("images"), newProviderQuery(provider))
	return page.Items, err
}

// PrePulls returns the images that the server prepares when it starts.
func (g Images) PrePulls(ctx context.Context) ([]api.PrePull, error) {
	return getItems[api.PrePull](ctx, g.client, apiPath("images", "pre-pull"))
}

// Remove removes an image, by ID or name, from the server's image cache. NotFound, Conflict: in
// use. Unsupported: the server does not manage the images of that provider.
func (g Images) Remove(ctx context.Context, provider, id string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("images", id), query: newProviderQuery(provider)})
}

// Pull fetches an image for the server's sandboxes. It calls progress with the number of bytes,
// total being 0 where it is unknown; progress may be nil.
func (g Images) Pull(ctx context.Context, p api.Pull, progress func(done, total int64)) (api.Image, error) {
	var (
		image api.Image
		done  bool
	)
	r := call{method: http.MethodPost, path: apiPath("images", "pull"), in: p}
	err := g.client.streamEvents(ctx, r, func(name string, data []byte) error {
		switch name {
		case "progress":
			var p wire.Progress
			if err := json.Unmarshal(data, &p); err == nil && progress != nil {
				progress(p.Done, p.Total)
			}
		case "result":
			done = true
			return json.Unmarshal(data, &image)
		}
		return nil
	})
	if err == nil && !done {
		err = sandpit.Errorf(sandpit.Unavailable, "connection to the server lost before the image was fetched")
	}
	return image, err
}

// newProviderQuery returns a query that names a provider, unless that is "".
func newProviderQuery(name string) url.Values {
	query := url.Values{}
	if name != "" {
		query.Set("provider", name)
	}
	return query
}
