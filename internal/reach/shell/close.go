package shell

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func errClosed() error { return sandpit.Errorf(sandpit.Gone, "the session is closed") }

// Close ends the shell, the jobs and all their descendants that did not detach themselves
// into a session of their own, and waits for their end. A running command is ended; it and
// the waiting ones return Gone. Close is idempotent. Info and the output of jobs can be read
// afterwards.
func (s *Session) Close() error { return s.closeSession(errClosed()) }

func (s *Session) closeSession(reason error) error {
	s.mu.Lock()
	if s.reason == nil {
		s.reason = reason
		close(s.closing)
	}
	s.mu.Unlock()
	s.lock <- struct{}{} // its holder releases it soon
	defer func() { <-s.lock }()
	defer s.memory.Close()
	ctx := context.Background()
	var err error
	if s.shell != nil {
		err = s.shell.killShell(ctx)
		s.shell = nil
	}
	return errors.Join(err, s.closeJobs(ctx))
}

// Restart ends the shell and all its descendants when no command runs. The next command gets
// a new shell without the old state. Jobs keep running. The errors are those of Run.
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

// endJob kills the job and returns when its follower has ended.
func (j *Job) endJob(ctx context.Context) error {
	err := j.Kill(ctx)
	if err == nil {
		select {
		case <-j.ended:
		case <-ctx.Done():
			err = sandpit.Errorf(sandpit.Timeout, "job %s was killed but did not end", j.id)
		}
	}
	j.cancel()
	<-j.ended
	return err
}

// idleFor returns how long no command and no job has run.
func (s *Session) idleFor() time.Duration {
	if s.jobs.countRunning() > 0 {
		s.beginUse()() // a running job counts as use until now
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > 0 {
		return 0
	}
	return time.Since(s.lastUsed)
}
