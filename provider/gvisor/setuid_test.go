package gvisor_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestSetUID has an ordinary account of a sandbox become its root, by a program that may,
// and not by one that may not, nor after it has given up that anything may.
func TestSetUID(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Image: etcImage(t)})
	const refused = "su: must be suid to work properly\nrefused"
	if got, want := output(t, box, `set -e
echo root::0:0::/:/bin/sh > /etc/passwd
echo me:x:1000:1000::/:/bin/sh >> /etc/passwd
busybox cp /bin/busybox /bin/su
busybox chmod 4755 /bin/su
busybox su -s /bin/sh -c '/bin/su -c "busybox id -u" root' me
busybox su -s /bin/sh -c 'busybox setpriv --nnp /bin/su -c "busybox id -u" root 2>&1 || echo refused' me
busybox chmod 755 /bin/su
busybox su -s /bin/sh -c '/bin/su -c "busybox id -u" root 2>&1 || echo refused' me`), "0\n"+refused+"\n"+refused; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
