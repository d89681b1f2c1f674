package e2b

import (
	"context"
	"maps"

	"github.com/sandpit-dev/sandpit"
)

// missingAbilities returns what sandboxes of E2B cannot do here, with the reasons.
func missingAbilities() map[string]string {
	return map[string]string{
		"archive":    "E2B archives paused sandboxes on its own",
		"checkpoint": "E2B saves files when it pauses a sandbox, and cannot save a running one for recovery",
		"diff":       "E2B returns no layers of images",
		"mounts":     "sandboxes are on other machines and cannot show files of this one",
		"pids":       "E2B cannot limit the number of processes",
		"pool":       "E2B cannot change the metadata of a sandbox, so none can be created in advance for an unknown owner",
		"resize":     "the template decides about processors, memory and disk",
		"rollback":   "E2B cannot return a sandbox to a snapshot",
	}
}

// ReadAccount implements sandpit.AccountReader.
func (p *Provider) ReadAccount(ctx context.Context) (sandpit.Account, error) {
	list, err := p.listOwn(ctx, nil)
	if err != nil {
		return sandpit.Account{}, sandpit.WithSubject(err, sandpit.Subject{Provider: Name, Operation: "read the account"})
	}
	return sandpit.Account{
		Endpoint: p.api.client.Endpoint(), Sandboxes: len(list),
		Abilities: []string{"dial", "network", "pause", "renew", "snapshot", "state", "stats", "stop", "suspend", "volumes"},
		Missing:   maps.Clone(missingAbilities()),
	}, nil
}
