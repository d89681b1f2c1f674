// Package registration defines how a provider describes itself to the programs of sandpit. Package
// register in the folder of a provider returns its description, and the table of package daemon
// lists the descriptions. Everything else asks a description for an ability and never for a name.
package registration

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// Provider describes a provider.
type Provider struct {
	// Name selects the provider in requests and in the configuration.
	Name string
	// Endpoint returns, for people, what the provider works with: a directory, a socket, an
	// address. It contains no secrets.
	Endpoint func(config.Config) string
	// Instance has the type of the provider's sandboxes. It may be a nil pointer: only its type
	// is used, to list the abilities of sandboxes.
	Instance sandpit.Instance
	// Open opens the provider.
	//
	// Unsupported: sandboxes of this provider cannot end with the program.
	Open func(context.Context, Surroundings) (sandpit.Provider, error)

	// The fields below are optional abilities.

	// Used reports whether a server may have sandboxes of this provider, which is opened when it
	// is needed. Default: it is a part of this machine, and a server opens it when it starts.
	Used func(config.Config) bool
	// UsesImageCache means that sandboxes start from images of the image cache, and that
	// templates can be built. Default: the provider has images of its own, if it is an
	// ImageKeeper, or accepts any name.
	UsesImageCache bool
	// DefaultImage returns the image of requests that name none. Default: sandbox.image.
	DefaultImage func(config.Config) sandpit.Image
	// OwnLimits means that requests without limits get those of the provider's section, and not those
	// of [sandbox].
	OwnLimits bool
	// TrialImage is an image that needs no download. Default: the default image.
	TrialImage sandpit.Image
	// EndsSandboxes means that Close ends all sandboxes that need not outlive the program.
	// Default: each is destroyed.
	EndsSandboxes bool
	// CheckLimits returns an error if this machine cannot enforce limits, and EnforceableLimits
	// returns those that it can enforce. Default: Create decides.
	CheckLimits       func(sandpit.Resources) error
	EnforceableLimits func(sandpit.Resources) sandpit.Resources
	// Examine checks whether the provider works, without creating a sandbox. A finding that
	// matters only to users of the provider has a hint how to use it.
	Examine func(context.Context, Surroundings) []Finding
	// EnterGroup moves this process, a server, into a control group of its own. memory is how
	// many bytes the server uses for requests.
	EnterGroup func(memory int64) (Group, error)
	// UpgradeState makes saved state independent of the version of the engine. A server may run
	// meanwhile.
	UpgradeState func(context.Context, Surroundings) ([]Upgraded, error)
}

// Surroundings are what a provider is opened with.
type Surroundings struct {
	Config config.Config
	// Lasting means that sandboxes outlive the program, which is a server. Default: they end with
	// the program.
	Lasting bool
	// Identity marks the sandboxes of a server. Default: no sandboxes are created.
	Identity string
	// Images is the image cache. It may be nil for a provider that does not use the cache.
	Images *image.Store
	// Credentials returns the logins for registries.
	Credentials image.CredentialFunc
	// Guard refuses registries to the owners of a server.
	Guard *image.Guard
	// Group is the control group of the server. Nil: it has none.
	Group Group
	// Log is the log of a server.
	Log *slog.Logger
	// Notice and Progress report oddities and downloads to the user of a program that is not a
	// server. Each may be nil.
	Notice   func(text string)
	Progress image.Progress
}

// Group is a control group that this process has entered. Close leaves and removes it.
type Group interface {
	fmt.Stringer
	io.Closer
}

// Finding is the result of one check of a machine.
type Finding struct {
	// Name names the check in a word or two.
	Name string
	// Text is the result.
	Text string
	// Hint is what to do about it, or "".
	Hint string
	// Failed means that no sandbox can start.
	Failed bool
}

// Upgraded reports the upgrade of one suspended sandbox.
type Upgraded struct {
	ID sandpit.ID
	// Done means that the files were saved beside the memory now. Otherwise they were there
	// before.
	Done bool
	// Err is why they could not be saved. The sandbox is unchanged.
	Err error
}

// ImageKeeper is an ability of an opened provider that has images of its own. Methods with an owner
// work for an ordinary owner of a server, and for an administrator if it is "".
type ImageKeeper interface {
	// Images returns the images that have a name and that the owner may use.
	Images(ctx context.Context, owner string) ([]image.Entry, error)
	// Pull fetches an image if it is missing; with always, in any case. progress may be nil.
	Pull(ctx context.Context, owner, name string, always bool, progress image.Progress) (image.Entry, error)
	// RemoveImage removes an image by name or ID.
	RemoveImage(ctx context.Context, name string) error
	// ResolveImage returns a reference that means the present content of an image only, which is
	// fetched first if it is missing.
	ResolveImage(ctx context.Context, owner string, ref sandpit.Image) (sandpit.Image, error)
}

// ImageReader is an ability of an opened provider that does not use the image cache.
type ImageReader interface {
	// HasImage reports whether there is an image under a name already.
	HasImage(ctx context.Context, name string) (bool, error)
	// ImageConfig returns the configuration of an image, which is fetched first if it is missing.
	ImageConfig(ctx context.Context, ref sandpit.Image) (image.Config, error)
}
