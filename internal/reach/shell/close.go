package shell

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func errClosed() error { return sandpit.Errorf(sandpit.Gone, "the session is closed") }

// Close ends the shell, the jobs and all that they started and that did not detach
// itself into a session of its own, and waits for that. A command that runs is
// ended; it and those that wait return Gone. Close is idempotent; Info and what jobs
// have put out can be read afterwards.
func (s *Session) Close() error { return s.closeSession(errClosed()) }

func (s *Session) closeSession(reason error) error {
	s.mu.Lock()
	if s.reason == nil {
		s.reason = reason
		close(s.closing)
	}
	s.mu.Unlock()
	s.turn <- struct{}{} // whoever has it gives it back soon
	defer func() { <-s.turn }()
	defer s.memory.Close()
	ctx := context.Background()
	var err error
	if s.shell != nil {
		err = s.shell.killShell(ctx)
		s.shell = nil
	}
	return errors.Join(err, s.closeJobs(ctx))
}

// Restart ends the shell and all that it started, once no command runs. The next
// command gets a new one, which remembers nothing. Jobs go on. Errors as of Run.
func (s *Session) Restart(ctx context.Context) error {
	defer s.beginUse()()
	release, err := s.lockShell(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := s.closedError(); err != nil || s.shell == nil {
		return err
	}
	err = s.shell.killShell(ctx)
	s.shell = nil
	s.mu.Lock()
	s.cwd = s.o.Dir
	s.mu.Unlock()
	return s.noteGone(err)
}

// closeJobs kills the jobs.
func (s *Session) closeJobs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	list := s.jobs.startedJobs()
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, j := range list {
		wg.Go(func() { errs[i] = j.endJob(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// endJob kills the job and returns when nothing follows it any more.
func (j *Job) endJob(ctx context.Context) error {
	err := j.Kill(ctx)
	if err == nil {
		select {
		case <-j.ended:
		case <-ctx.Done():
			err = sandpit.Errorf(sandpit.Timeout, "job %s was killed and does not end", j.id)
		}
	}
	j.cancel()
	<-j.ended
	return err
}

// idleFor is how long no command and no job has run.
func (s *Session) idleFor() time.Duration {
	if s.jobs.countRunning() > 0 {
		s.beginUse()() // it counts as work until it ends
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > 0 {
		return 0
	}
	return time.Since(s.lastUsed)
}
