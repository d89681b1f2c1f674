package daytona

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// logLines is how many lines of a log are read at a time.
const logLines = 200

// buildOf returns the build of what is in the path: a snapshot, or a sandbox that was created
// from a Dockerfile.
//
// NotFound: there is no such snapshot or sandbox, or it was not built.
func (s *Server) buildOf(c *call) (sandpit.BuildID, error) {
	if c.r.PathValue("sandbox") != "" {
		b, err := findSandbox(c, s.sandboxes.manager)
		if p, ok := s.sandboxes.findPending(c, err); ok {
			return p.build, nil
		}
		if err != nil {
			return "", err
		}
		if m, _ := markOf(b); m.Build != "" {
			return m.Build, nil
		}
		return "", sandpit.Errorf(sandpit.NotFound, "sandbox %s was not built from a Dockerfile", b.ID)
	}
	f, err := s.snapshots.findSnapshot(c)
	if err != nil {
		return "", err
	}
	if f.template == nil {
		return "", sandpit.Errorf(sandpit.NotFound, "snapshot %s was not built", f.saved.ID)
	}
	list, err := s.snapshots.manager.Builds().List(c.r.Context(), f.template.Owner, string(f.template.ID), 1)
	if err != nil || len(list) == 0 {
		return "", err
	}
	return list[0].ID, nil
}

// getLogURL returns a handler that returns the address of the log of a build.
func (s *Server) getLogURL(c *call) (int, any, error) {
	if _, err := s.buildOf(c); err != nil {
		return 0, nil, err
	}
	path := Prefix + "/snapshots/" + c.r.PathValue("snapshot")
	if id := c.r.PathValue("sandbox"); id != "" {
		path = Prefix + "/sandbox/" + id
	}
	return http.StatusOK, urlAnswer{externalURL(c.r) + path + "/build-logs"}, nil
}

// serveLog sends the log of a build as text. With follow=true it sends what is added until the
// build has ended.
func (s *Server) serveLog(w http.ResponseWriter, r *http.Request) {
	client, err := api.PrincipalOf(r.Context())
	if err != nil {
		WriteError(w, r, err)
		return
	}
	build, err := s.buildOf(&call{r: r, w: w, client: client, maxBody: s.maxBody})
	if err != nil {
		WriteError(w, r, err)
		return
	}
	follow, _ := strconv.ParseBool(r.URL.Query().Get("follow")) // anything else means no
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	for after := int64(0); ; {
		ended, next, err := s.sendLog(r.Context(), w, client.Owner, build, after)
		if err != nil || ended || !follow {
			return // the head was sent: an incomplete log is all that the client can get
		}
		after = next
		select {
		case <-time.After(buildPoll):
		case <-r.Context().Done():
			return
		}
	}
}

// sendLog sends the log of a build after an entry. It returns whether the build had ended before
// and the last entry.
func (s *Server) sendLog(ctx context.Context, w http.ResponseWriter, owner string, id sandpit.BuildID, after int64) (ended bool, last int64, err error) {
	builds := s.snapshots.manager.Builds()
	b, err := builds.Get(ctx, owner, id)
	if err != nil {
		return false, after, err
	}
	control := http.NewResponseController(w)
	for {
		lines, err := builds.Log(ctx, owner, id, after, logLines)
		if err != nil || len(lines) == 0 {
			return b.Status.Ended(), after, err
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // connections without deadlines need none
		for _, line := range lines {
			if _, err := w.Write([]byte(line.Text + "\n")); err != nil {
				return false, after, err
			}
			after = line.Seq
		}
		if err := control.Flush(); err != nil {
			return false, after, err
		}
	}
}
