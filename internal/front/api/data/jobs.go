package data

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// findJob returns the job in the path.
func (s *Server) findJob(c *call) (*shell.Job, error) {
	session, err := s.findSession(c)
	if err != nil {
		return nil, err
	}
	return session.Job(c.r.PathValue("jid"))
}

func toJob(i shell.JobInfo) wire.Job {
	return wire.Job{
		ID: i.ID, Command: i.Command, PID: i.PID, Dir: i.Dir, Terminal: i.Terminal, StartedAt: i.StartedAt, Output: i.Output,
		Running: i.Running, EndedAt: i.EndedAt, ExitCode: i.ExitCode, OutOfMemory: i.OutOfMemory, Error: i.Error,
	}
}

func (s *Server) startJob(ctx context.Context, c *call) error {
	var req wire.NewJob
	if err := c.readBody(&req); err != nil {
		return err
	}
	session, err := s.findSession(c)
	if err != nil {
		return err
	}
	timeout, err := parseTimeout(req.Timeout)
	if err != nil {
		return err
	}
	most, err := parseMaxOutput(req.MaxOutput)
	if err != nil {
		return err
	}
	r := shell.JobRequest{Command: req.Command, Timeout: timeout, Stdin: req.Stdin, MaxOutput: most}
	if req.Terminal != nil {
		size := sandpit.TerminalSize(*req.Terminal)
		if size.Cols == 0 || size.Rows == 0 {
			return sandpit.Errorf(sandpit.Invalid, "body.terminal: want cols and rows above 0")
		}
		r.Terminal = &size
	}
	job, err := session.Start(ctx, r)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusCreated, toJob(job.Info()))
}

func (s *Server) listJobs(_ context.Context, c *call) error {
	session, err := s.findSession(c)
	if err != nil {
		return err
	}
	page := wire.Page[wire.Job]{Items: []wire.Job{}}
	for _, job := range session.Jobs() {
		page.Items = append(page.Items, toJob(job.Info()))
	}
	return c.writeJSON(http.StatusOK, page)
}

func (s *Server) getJob(_ context.Context, c *call) error {
	job, err := s.findJob(c)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, toJob(job.Info()))
}

// readJobOutput responds with the output of a job after an offset: what is available, or as
// events everything until the job ends.
func (s *Server) readJobOutput(ctx context.Context, c *call) error {
	values, err := c.parseQuery("offset")
	if err != nil {
		return err
	}
	job, err := s.findJob(c)
	if err != nil {
		return err
	}
	text := values.Get("offset")
	if last := c.r.Header.Get("Last-Event-Id"); last != "" {
		text = last
	}
	var offset int64
	if text != "" {
		if offset, err = strconv.ParseInt(text, 10, 64); err != nil || offset < 0 {
			return sandpit.Errorf(sandpit.Invalid, "invalid offset %.20q", text)
		}
	}
	if !wantsEvents(c.r) {
		return c.writeJSON(http.StatusOK, wire.Chunk(job.Peek(offset, 0)))
	}
	stream, err := s.openEvents(ctx, c)
	if err != nil {
		return err
	}
	defer stream.closeStream()
	for {
		chunk, err := job.Output(ctx, offset, 0)
		if err != nil {
			return stream.sendFailure(err)
		}
		if len(chunk.Data) > 0 {
			if err := stream.sendEvent("output", strconv.FormatInt(chunk.Next, 10), wire.Chunk(chunk)); err != nil {
				return err
			}
		}
		if chunk.Ended {
			// The output ends shortly before the job.
			_, _ = job.Wait(ctx) // the result is in the description of the job
			return stream.sendEvent("exit", strconv.FormatInt(chunk.Next, 10), toJob(job.Info()))
		}
		offset = chunk.Next
	}
}

func (s *Server) writeJobInput(ctx context.Context, c *call) error {
	var req wire.Input
	if err := c.readBody(&req); err != nil {
		return err
	}
	if len(req.Data) > 0 && req.Text != "" {
		return sandpit.Errorf(sandpit.Invalid, "body: want either data or text")
	}
	job, err := s.findJob(c)
	if err != nil {
		return err
	}
	if input := slices.Concat(req.Data, []byte(req.Text)); len(input) > 0 {
		if err := job.Write(ctx, input); err != nil {
			return err
		}
	}
	if req.End {
		if err := job.CloseInput(); err != nil {
			return err
		}
	}
	return c.writeNoContent()
}

func (s *Server) signalJob(ctx context.Context, c *call) error {
	var req wire.Signal
	if err := c.readBody(&req); err != nil {
		return err
	}
	job, err := s.findJob(c)
	if err != nil {
		return err
	}
	if err := job.Signal(ctx, sandpit.Signal(req.Signal)); err != nil {
		return err
	}
	return c.writeNoContent()
}
