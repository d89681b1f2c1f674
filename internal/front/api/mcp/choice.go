package mcp

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcp"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const (
	// label marks the sandboxes of sessions, so that they are found after a crash. Its value
	// is the ID of the sandbox, because forks also have the label. Until the ID is known, it
	// is unsetLabel.
	label, unsetLabel = "sandpit.mcp", "new"
	// idleMargin is how much longer a sandbox may be idle than its session, which removes it.
	idleMargin = 5 * time.Minute
	// headerPrefix begins the headers that are an alternative to the query.
	headerPrefix = "Sandpit-"
)

// choice is what a client wants its session to be like.
type choice struct {
	image    sandpit.Image
	provider string
	network  *bool    // nil: the server's default
	tools    []string // words as tool.Choose takes them; none: the server's default
	idle     time.Duration
}

// parseChoice reads the choice of the request that begins a session: from its query, such as
// /mcp?template=node&tools=file,shell, or from headers, such as Sandpit-Template.
func parseChoice(r *http.Request) (choice, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return choice{}, sandpit.Errorf(sandpit.Invalid, "invalid query of the URL")
	}
	var c choice
	known := []string{"image", "template", "provider", "network", "tools"}
	for name := range query {
		if !slices.Contains(known, name) {
			return c, sandpit.Errorf(sandpit.Invalid, "unknown parameter %.40q; want %s", name, strings.Join(known, ", "))
		}
	}
	said := make(map[string]string, len(known))
	for _, name := range known {
		values := slices.Concat(query[name], r.Header.Values(headerPrefix+name))
		for _, v := range values {
			if v != values[0] {
				return c, sandpit.Errorf(sandpit.Invalid, "%s has two different values", name)
			}
			said[name] = v
		}
	}
	if said["image"] != "" && said["template"] != "" {
		return c, sandpit.Errorf(sandpit.Invalid, "image and template exclude each other")
	}
	c.image, c.provider = sandpit.Image(said["image"]), said["provider"]
	if name := said["template"]; name != "" {
		c.image = sandpit.Image(sandpit.TemplatePrefix + name)
	}
	if text := said["network"]; text != "" {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return c, sandpit.Errorf(sandpit.Invalid, "network %.20q: want true or false", text)
		}
		c.network = &on
	}
	for name := range strings.SplitSeq(said["tools"], ",") {
		if name = strings.TrimSpace(name); name != "" {
			c.tools = append(c.tools, name)
		}
	}
	return c, nil
}

// toCreate returns the request for the sandbox.
func (c choice) toCreate() wire.CreateRequest {
	w := wire.CreateRequest{
		Provider: c.provider,
		Spec:     sandpit.Spec{Image: c.image, Labels: map[string]string{label: unsetLabel}},
		Policy:   sandpit.Policy{IdleTimeout: c.idle + idleMargin, IdleAction: sandpit.ActionKill},
	}
	if c.network != nil {
		w.Spec.Network.Online, w.Offline = *c.network, !*c.network
	}
	return w
}

// newOpener returns a function that creates the sandbox of a session.
func (s *Server) newOpener(client api.Principal, c choice) func(context.Context) (mcp.Place, error) {
	return func(ctx context.Context) (mcp.Place, error) {
		ctx = api.WithPrincipal(ctx, client)
		made, err := s.o.Manager.Create(ctx, s.o.Request(client, c.toCreate()))
		if err != nil {
			return mcp.Place{}, err
		}
		if err := s.o.Manager.SetLabels(ctx, made.ID, map[string]string{label: string(made.ID)}); err != nil {
			return mcp.Place{}, errors.Join(err, s.o.Manager.Delete(context.WithoutCancel(ctx), made.ID))
		}
		return mcp.Place{
			ID: made.ID, User: made.Spec.User,
			Hold:    func(ctx context.Context) (mcp.Held, error) { return toHeld(s.o.Manager.Wake(ctx, made.ID)) },
			Close:   func(ctx context.Context) error { return s.o.Manager.Delete(ctx, made.ID) },
			Preview: s.newPreview(client, made.ID),
		}, nil
	}
}

// newPreview returns a function that returns a link to a port of a sandbox, or nil if the
// server has no previews.
func (s *Server) newPreview(client api.Principal, id sandpit.ID) func(context.Context, int) (tool.Page, error) {
	if s.o.Preview == nil {
		return nil
	}
	return func(ctx context.Context, port int) (tool.Page, error) {
		t, err := s.o.Preview(api.WithPrincipal(ctx, client), id, port, tool.PageLife, 0)
		if err != nil {
			return tool.Page{}, err
		}
		return tool.NewPage(port, cmp.Or(t.URL, t.PathURL), t.ExpiresAt)
	}
}

// toHeld converts a nil pointer to a nil interface.
func toHeld(h *manager.Handle, err error) (mcp.Held, error) {
	if err != nil {
		return nil, err
	}
	return h, nil
}

const (
	// maxCachedWords is how many words a choice may have whose registry is cached, and
	// maxRegistries how many registries are cached.
	maxCachedWords, maxRegistries = 16, 64
)

// registries caches the tools of recent choices.
type registries struct {
	mu   sync.Mutex
	made map[string]*tool.Registry
}

// chooseTools returns the tools that some words choose. Invalid: a word chooses nothing.
func (r *registries) chooseTools(words []string) (*tool.Registry, error) {
	key := strings.Join(slices.Compact(slices.Sorted(slices.Values(words))), ",")
	r.mu.Lock()
	defer r.mu.Unlock()
	if tools := r.made[key]; tools != nil {
		return tools, nil
	}
	tools, err := tool.Choose(nil, words...)
	if err != nil || len(words) > maxCachedWords {
		return tools, err
	}
	if r.made == nil || len(r.made) >= maxRegistries {
		r.made = make(map[string]*tool.Registry)
	}
	r.made[key] = tools
	return tools, nil
}
