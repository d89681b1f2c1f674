package daemon

import "github.com/sandpit-dev/sandpit"

// ability is an optional interface under the name that clients see.
type ability struct {
	name string
	has  func(any) bool
}

func newAbility[T any](name string) ability {
	return ability{name, func(v any) bool {
		_, has := sandpit.As[T](v)
		return has
	}}
}

// providerAbilities are what a provider can do besides creating sandboxes.
func providerAbilities() []ability {
	return []ability{
		newAbility[sandpit.VolumeKeeper]("volumes"),
		newAbility[sandpit.SnapshotKeeper]("snapshots"),
	}
}

// instanceAbilities are what sandboxes can do, in the order of a sandbox's life.
func instanceAbilities() []ability {
	return []ability{
		newAbility[sandpit.Claimer]("pool"),
		newAbility[sandpit.NetworkPolicer]("network"),
		newAbility[sandpit.Dialer]("dial"),
		newAbility[sandpit.Statser]("stats"),
		newAbility[sandpit.Resizer]("resize"),
		newAbility[sandpit.Pauser]("pause"),
		newAbility[sandpit.Suspender]("suspend"),
		newAbility[sandpit.Checkpointer]("checkpoint"),
		newAbility[sandpit.Stopper]("stop"),
		newAbility[sandpit.Archiver]("archive"),
		newAbility[sandpit.Snapshotter]("snapshot"),
		newAbility[sandpit.Rollbacker]("rollback"),
		newAbility[sandpit.LayerReader]("diff"),
	}
}

// abilityNames names the abilities in a list that v has. It calls no method of v, which may be a nil
// pointer.
func abilityNames(list []ability, v any) (names []string) {
	for _, a := range list {
		if a.has(v) {
			names = append(names, a.name)
		}
	}
	return names
}
