package daemon

import "github.com/sandpit-dev/sandpit"

// ownAbilities names what a provider can do besides making sandboxes.
func ownAbilities(p sandpit.Provider) []string {
	var list []string
	if _, ok := sandpit.As[sandpit.VolumeKeeper](p); ok {
		list = append(list, "volumes")
	}
	if _, ok := sandpit.As[sandpit.SnapshotKeeper](p); ok {
		list = append(list, "snapshots")
	}
	return list
}

// abilityNames names what sandboxes of the type of i can do besides the usual, in the
// order of a sandbox's life. Nothing of i but its type is looked at, so it may be a nil
// pointer.
func abilityNames(i sandpit.Instance) []string {
	var list []string
	add := func(can bool, name string) {
		if can {
			list = append(list, name)
		}
	}
	_, can := i.(sandpit.Claimer)
	add(can, "pool")
	_, can = i.(sandpit.NetworkPolicer)
	add(can, "network")
	_, can = i.(sandpit.Dialer)
	add(can, "dial")
	_, can = i.(sandpit.Statser)
	add(can, "stats")
	_, can = i.(sandpit.Resizer)
	add(can, "resize")
	_, can = i.(sandpit.Pauser)
	add(can, "pause")
	_, can = i.(sandpit.Suspender)
	add(can, "suspend")
	_, can = i.(sandpit.Checkpointer)
	add(can, "checkpoint")
	_, can = i.(sandpit.Stopper)
	add(can, "stop")
	_, can = i.(sandpit.Archiver)
	add(can, "archive")
	_, can = i.(sandpit.Snapshotter)
	add(can, "snapshot")
	_, can = i.(sandpit.Rollbacker)
	add(can, "rollback")
	_, can = i.(sandpit.LayerReader)
	add(can, "diff")
	return list
}
