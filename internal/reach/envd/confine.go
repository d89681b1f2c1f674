package envd

import (
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem/filesystemconnect"
)

// confineHeader has directories that a call may not leave. It holds besides withinHeader, which
// the sender of a request may set.
const confineHeader = "Sandpit-Confine"

// confineFiles has the guest confine a file call as the observer requires. It sees the calls of
// all front ends, because each needs the guest's key.
func (a *authorized) confineFiles(r *http.Request) error {
	r.Header.Del(confineHeader)
	to := a.observer.Load()
	if to == nil || to.Confine == nil || !isFileCall(r.URL.Path) {
		return nil
	}
	dirs := to.Confine(r.Context())
	if len(dirs) == 0 {
		return nil
	}
	if err := a.requireConfinement(r); err != nil {
		return err
	}
	r.Header[confineHeader] = dirs
	return nil
}

func isFileCall(path string) bool {
	return path == wholeTree || path == oneFile || strings.HasPrefix(path, oneFile+"/") || strings.HasPrefix(path, "/"+filesystemconnect.FilesystemName+"/")
}

// requireConfinement asks the guest whether it honors confineHeader. A guest of an earlier version
// would ignore it.
func (a *authorized) requireConfinement(r *http.Request) error {
	if a.confines.Load() {
		return nil
	}
	health, err := http.NewRequestWithContext(r.Context(), http.MethodGet, base+"/health", http.NoBody)
	if err != nil {
		return err
	}
	res, err := a.rt.RoundTrip(health)
	if err != nil {
		return err
	}
	_ = res.Body.Close() // has nothing
	if res.Header.Get(confineHeader) == "" {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "confine a file call: this sandbox was started by an earlier version, which cannot"),
			"restart it: sandpit restart NAME")
	}
	a.confines.Store(true)
	return nil
}
