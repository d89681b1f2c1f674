package preview

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// GuestPort is the port that is never public.
const GuestPort = guestPort

// SetRules sets what Options say of sandboxes that E2B's clients make. No request may
// be under way.
func (g *Gateway) SetRules(rules func(sandpit.Sandbox) Rules, wake func(context.Context, sandpit.ID) error) {
	g.o.Rules, g.o.Wake = rules, wake
}
