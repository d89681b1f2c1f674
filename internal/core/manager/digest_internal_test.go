package manager

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// TestDigestStays compares the digest of a request without an idle action with what earlier
// versions wrote: the request, sent again after an upgrade, must still find its sandbox.
func TestDigestStays(t *testing.T) {
	t.Parallel()
	r := CreateRequest{Provider: "p", Spec: sandpit.Spec{Name: "n"}, Policy: store.Policy{IdleTimeout: time.Hour, Recreate: 2, WakeOnUse: true}}
	r.Lease.Action = sandpit.ActionKill
	sum := sha256.Sum256([]byte(`{"Provider":"p","Spec":{"name":"n"},"Action":"kill","Policy":{"IdleTimeout":3600000000000,"IdleAction":"kill",` +
		`"AutoStop":0,"AutoSuspend":0,"AutoArchive":0,"AutoDelete":0,"Recreate":2,"CheckpointEvery":0,"IgnoreBackground":false,"WakeOnUse":true}}`))
	if got, want := r.computeDigest(), hex.EncodeToString(sum[:]); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	r.Policy.IdleAction = sandpit.ActionStop
	if other := r.computeDigest(); other == hex.EncodeToString(sum[:]) {
		t.Error("another idle action has the same digest")
	}
}
