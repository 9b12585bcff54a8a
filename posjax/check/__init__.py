"""`python -m posjax.check`: whether attention is computed correctly on this device, and how fast.

Every implementation of attention runs in a process of its own, beside the dense reference, so that
a kernel that crashes or hangs is one line of the page.

  __main__    the command
  cases       which schemes, widths and dtypes are compared, and what their rounding allows
  attention   attention of one case, with its gradients, and its distance from the reference
  worker      the process of one implementation
  process     that process as the parent sees it: answers, deadlines, crashes
  values      the first part: values and gradients of every case
  speeds      the second part: seconds and memory at growing lengths
  collectives the speed at which several devices exchange arrays
  report      what was found, and the advice that follows
  page        a report as one page of text

The parent never asks JAX for a device: an accelerator may serve one process at a time.
"""
