"""A fuzzer: thousands of calls, configs, commands, files and checkpoints, most of them wrong.

  python -m tests.fuzz                      # all of it: about 20 CPU minutes
  python -m tests.fuzz --area files         # one area
  python -m tests.fuzz --only library:123   # one case, with its whole traceback
  python -m tests.fuzz --quick              # the sample that the default run of pytest takes

Every case ends in one class. *Refused*: by any exception; a command says one line. *Correct*:
accepted, and an oracle agrees. *Raw*: a command that ends in a traceback, or in several lines.
*Silently wrong*: accepted although it should not be, or the oracle disagrees; also what is right
and is refused. *Hang*: over the time limit. The last three must be zero. Cases are numbered, and
the same at each run: hypothesis draws them with a fixed seed.

  case      what a case is, and what draws its values
  judge     which class a case ends in
  oracle    attention in float64, written from the formula, for what is accepted
  commands  a command in this process, or in one of its own
  made      small runs, comparisons and data files, which the cases then spoil
  worker    runs cases one after the other, in a process that may be killed
  table     the counts, and the list of faults
  areas     the cases themselves, a file for each kind of call
"""
